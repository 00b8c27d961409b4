"""What beam search by openai/whisper's rule gives over transformers + torch (float32), with whisper-tiny.en.

    pip install torch==2.13.0 transformers==5.24.0 soundfile soxr
    python tests/golden/make_whisper_beam_goldens.py MODEL_DIR/model.bin SPEECH OUT.json

The encoder, the decoder and the logit rules are those of make_whisper_goldens.py; the search follows the rule
of decoding.py of openai/whisper (BeamSearchDecoder and MaximumLikelihoodRanker). In a row, for each search of
SEARCHES:
    token_ids        of the chosen text, without the end token
    sum_logprob      of the chosen text, the end token included
    gap              the chosen text's score minus the next one's; null where there is no other
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parent))
from make_whisper_goldens import CHECKPOINTS, Rules, apply_rules, load_clip, load_model

CLIPS = (
    "TTS__LJ001-0002.wav",
    "DeepSpeech__LDC93S1.wav",
    "pocketsphinx__goforward.wav",
    "voice2json__what_time_is_it.wav",
)
MAX_LENGTH = 60
"""Most tokens: the search goes on past the likeliest ending until enough texts have ended."""


class Search(NamedTuple):
    """How texts are searched for."""

    beam_size: int = 5
    patience: float = 1.0
    length_penalty: float | None = None
    timestamps: bool = False


SEARCHES = {
    "text": Search(),
    "timestamps": Search(timestamps=True),
    "patience": Search(beam_size=3, patience=2.0, length_penalty=0.8),
}


class Scorer:
    """Log-probabilities of the next token of the beams of one window."""

    def __init__(self, model: WhisperForConditionalGeneration, features: torch.Tensor, search: Search):
        self.model = model
        self.rules = Rules(model.generation_config, search.timestamps)
        config = model.generation_config
        self.prompt = [config.decoder_start_token_id]
        if not search.timestamps:
            self.prompt.append(config.no_timestamps_token_id)
        self.beam_size = search.beam_size
        self.encoded = (model.model.encoder(features)[0].expand(self.beam_size, -1, -1),)
        self.rows: dict[tuple[int, ...], int] = {}
        self.cache = None

    def __call__(self, texts: list[tuple[int, ...]]) -> torch.Tensor:
        """Of texts that are each a token longer than one of the call before."""
        if self.cache is None:
            tokens = [self.prompt] * self.beam_size
        else:
            sources = [self.rows[text[:-1]] for text in texts]
            self.cache.reorder_cache(torch.tensor(sources))
            tokens = [[text[-1]] for text in texts]
        output = self.model(
            encoder_outputs=self.encoded,
            decoder_input_ids=torch.tensor(tokens),
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = output.past_key_values
        self.rows = {text: row for row, text in enumerate(texts)}
        pairs = zip(output.logits[:, -1], texts, strict=False)  # at first all rows are the one text
        return torch.stack([apply_rules(row, list(text), self.rules)[0] for row, text in pairs]).log_softmax(
            -1
        )


@torch.no_grad()
def search_texts(scorer: Scorer, search: Search, eos: int) -> dict[tuple[int, ...], float]:
    """The texts that ended, without their end token, and where they are too few the best that did not."""
    beams: dict[tuple[int, ...], float] = {(): 0.0}
    ended: dict[tuple[int, ...], float] = {}
    wanted = round(search.beam_size * search.patience)
    while len(ended) < wanted and len(next(iter(beams))) + len(scorer.prompt) < MAX_LENGTH:
        scores: dict[tuple[int, ...], float] = {}
        logprobs = scorer(list(beams))
        for (text, score), row in zip(beams.items(), logprobs, strict=True):
            top = row.topk(search.beam_size + 1)
            for logprob, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                scores[(*text, token)] = score + logprob
        beams, leaving = {}, []
        for text in sorted(scores, key=scores.__getitem__, reverse=True):
            if text[-1] == eos:
                leaving.append(text)
                continue
            beams[text] = scores[text]
            if len(beams) == search.beam_size:
                break
        for text in leaving[: wanted - len(ended)]:
            ended[text[:-1]] = scores[text]
    for text, score in beams.items():
        if len(ended) >= search.beam_size:
            break
        ended[text] = score
    return ended


def choose(texts: dict[tuple[int, ...], float], search: Search) -> dict[str, Any]:
    """The text of the best score, and how far the next one is."""
    penalty = search.length_penalty
    scores = {
        text: score / (len(text) if penalty is None else ((5 + len(text)) / 6) ** penalty)
        for text, score in texts.items()
    }
    best, *others = sorted(scores, key=scores.__getitem__, reverse=True)
    gap = scores[best] - scores[others[0]] if others else None
    return {
        "token_ids": list(best),
        "sum_logprob": round(texts[best], 5),
        "gap": None if gap is None or not math.isfinite(gap) else round(gap, 6),
    }


@torch.no_grad()
def make_row(model: WhisperForConditionalGeneration, path: Path) -> dict[str, Any]:
    """One clip in all searches."""
    waveform = load_clip(path)
    extractor = WhisperFeatureExtractor(feature_size=80)
    features = extractor(waveform, sampling_rate=16_000, return_tensors="pt").input_features
    eos = model.generation_config.eos_token_id
    row: dict[str, Any] = {"file": path.name, "num_samples": len(waveform)}
    for name, search in SEARCHES.items():
        scorer = Scorer(model, features, search)
        row[name] = {"prompt_token_ids": scorer.prompt, **choose(search_texts(scorer, search, eos), search)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the goldens of Whisper's beam search.")
    parser.add_argument("model", type=Path, help="model.bin of whisper-tiny.en")
    parser.add_argument("speech", type=Path, help="the folder of the clips")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model.parent / "tokenizer.json"))
    model = load_model(CHECKPOINTS["tiny.en"], [args.model], tokenizer)
    rows = []
    for clip in CLIPS:
        rows.append(make_row(model, args.speech / clip))
        for name in SEARCHES:
            found = rows[-1][name]
            print(clip, name, found["gap"], tokenizer.decode(found["token_ids"]), flush=True)
    header = {
        "model": f"{CHECKPOINTS['tiny.en'].spec}, float32",
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "searches": {name: search._asdict() for name, search in SEARCHES.items()},
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in header.items()]
    lines.append('"rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]")
    args.out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
