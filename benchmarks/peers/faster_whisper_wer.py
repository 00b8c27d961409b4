"""Word error rate of faster-whisper, greedy, on a table of English clips.

    pip install faster-whisper jiwer whisper-normalizer        (in a venv of its own)
    python benchmarks/peers/faster_whisper_wer.py MODEL_DIR speech.jsonl --compute-type float32 --out wer.json

The table has file (relative to it), text, language and variant. Rows with language "en" and variant false are
the short ones; the recordings named longform__ are scored apart.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jiwer
from faster_whisper import WhisperModel
from whisper_normalizer.english import EnglishTextNormalizer

LONG_FORM = "longform__"
SETTINGS: dict[str, Any] = {
    "language": "en",
    "beam_size": 1,
    "best_of": 1,
    "temperature": 0.0,
    "vad_filter": False,
    "condition_on_previous_text": False,
    "without_timestamps": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipResult:
    """One clip: both texts as they were, and the errors between their normalised forms."""

    file: str
    seconds: float
    reference: str
    hypothesis: str
    errors: int
    words: int


def read_table(path: Path) -> list[dict[str, Any]]:
    """The English rows that are not other encodings of an earlier row, and the long forms."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        row for row in rows if row["language"] == "en" and (not row["variant"] or LONG_FORM in row["file"])
    ]


def count_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """Substitutions, deletions and insertions; words of the reference (both texts are normalised)."""
    if not reference:
        return len(hypothesis.split()), 0
    output = jiwer.process_words(reference, hypothesis)
    return output.substitutions + output.deletions + output.insertions, len(reference.split())


def transcribe(model: WhisperModel, audio: Path, row: dict[str, Any]) -> ClipResult:
    """Decodes one clip and scores it."""
    normalize = EnglishTextNormalizer()
    segments, _ = model.transcribe(str(audio), **SETTINGS)
    hypothesis = "".join(segment.text for segment in segments).strip()
    errors, words = count_errors(normalize(row["text"]), normalize(hypothesis))
    return ClipResult(
        file=row["file"],
        seconds=row["seconds"],
        reference=row["text"],
        hypothesis=hypothesis,
        errors=errors,
        words=words,
    )


def rate(results: list[ClipResult]) -> dict[str, float]:
    """Errors of all clips over words of all clips, in percent."""
    errors, words = sum(r.errors for r in results), sum(r.words for r in results)
    seconds = round(sum(r.seconds for r in results), 2)
    percent = round(100 * errors / words, 3)
    return {
        "files": len(results),
        "seconds": seconds,
        "errors": errors,
        "words": words,
        "wer_percent": percent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a directory in the faster-whisper layout")
    parser.add_argument("table", type=Path)
    parser.add_argument("--compute-type", default="float32", help="float32, int8_float32...")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = WhisperModel(args.model, device="cpu", compute_type=args.compute_type, cpu_threads=2)
    results = [transcribe(model, args.table.parent / row["file"], row) for row in read_table(args.table)]
    long = [result for result in results if LONG_FORM in result.file]
    short = [result for result in results if LONG_FORM not in result.file]
    report = {
        "versions": {
            name: version(name) for name in ("faster-whisper", "ctranslate2", "jiwer", "whisper-normalizer")
        },
        "compute_type": args.compute_type,
        "settings": SETTINGS,
        "short": rate(short),
        "long": rate(long) if long else None,
        "clips": [asdict(result) for result in results],
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps({key: report[key] for key in ("compute_type", "short", "long")}))


if __name__ == "__main__":
    main()
