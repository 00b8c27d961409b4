"""Word error rate of the Whisper engine on a table of clips, and what it takes the engine to give it.

    python benchmarks/wer.py demo:whisper-tiny.en ../shared/data/speech.jsonl --timestamps segment

The table is .jsonl with file (relative to it), text, language and variant. Rows of --language are taken,
other encodings of an earlier row left out; the recordings named longform__ are scored apart. Texts are
compared after Whisper's English normaliser, in other languages after its basic one.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jiwer
from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from headrace.engines.whisper import Transcription, WhisperConfig, WhisperEngine

LONG_FORM = "longform__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One clip, both texts as they were, and the errors between their normalised forms."""

    file: str
    seconds: float
    reference: str
    hypothesis: str
    flags: tuple[str, ...]
    errors: int
    words: int

    @property
    def percent(self) -> float:
        return 100 * self.errors / max(self.words, 1)


def main() -> None:
    args = _arguments()
    rows = read_table(args.table, args.language)
    config = WhisperConfig(
        language=None if args.detect else args.language,
        return_timestamps=args.timestamps,
        dtype=args.dtype,
        batch_size=args.batch_size,
        deterministic=args.deterministic,
        mode=args.mode,
        vad=args.vad,
    )
    with WhisperEngine(args.model, config) as engine:
        started = time.monotonic()
        paths = [str(args.table.parent / row["file"]) for row in rows]
        futures = [engine.submit(path, request_id=path) for path in paths]
        results = [future.result() for future in futures]
        seconds = time.monotonic() - started
        metrics = engine.metrics()
    scores = [score(row, result, args.language) for row, result in zip(rows, results, strict=True)]
    for item in sorted(scores, key=lambda item: item.errors):
        print(f"{item.errors:4d} of {item.words:4d}  {item.file}  {' '.join(item.flags)}")
        if args.show and item.errors:
            print(f"      ref {item.reference}\n      hyp {item.hypothesis}")
    report = {
        "short": rate([item for item in scores if LONG_FORM not in item.file]),
        "long": rate([item for item in scores if LONG_FORM in item.file]),
        "wall_s": round(seconds, 2),
        "metrics": metrics,
    }
    print(json.dumps(report))
    if args.out:
        report["clips"] = [asdict(item) for item in scores]
        args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def read_table(path: Path, language: str) -> list[dict[str, Any]]:
    """The rows of one language that are not other encodings of an earlier row, and the long forms."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        row
        for row in rows
        if row["language"] == language and (not row["variant"] or LONG_FORM in row["file"])
    ]


def score(row: dict[str, Any], result: Transcription, language: str) -> Score:
    """Substitutions, deletions and insertions of one clip."""
    errors, words = count_errors(row["text"], result.text, language)
    return Score(
        file=row["file"],
        seconds=row["seconds"],
        reference=row["text"],
        hypothesis=result.text,
        flags=result.quality_flags if result.error is None else (result.error.message,),
        errors=errors,
        words=words,
    )


def count_errors(said: str, heard: str, language: str = "en") -> tuple[int, int]:
    """Substitutions, deletions and insertions, and the words that were said, of normalised texts."""
    normalize = EnglishTextNormalizer() if language == "en" else BasicTextNormalizer()
    reference, hypothesis = normalize(said), normalize(heard)
    if not reference:
        return len(hypothesis.split()), 0
    output = jiwer.process_words(reference, hypothesis)
    return output.substitutions + output.deletions + output.insertions, len(reference.split())


def rate(scores: Sequence[Score]) -> dict[str, float]:
    """Errors of all clips over words of all clips, in percent."""
    errors, words = sum(item.errors for item in scores), sum(item.words for item in scores)
    return {
        "files": len(scores),
        "seconds": round(sum(item.seconds for item in scores), 2),
        "errors": errors,
        "words": words,
        "wer_percent": round(100 * errors / max(words, 1), 3),
    }


def table_arguments(description: str | None, timestamps: str) -> argparse.ArgumentParser:
    """A parser of what a benchmark over a table takes: the model, the rows, and the times of their texts."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model spec")
    parser.add_argument("table", type=Path)
    parser.add_argument("--language", default="en", help="rows to take, and the language the engine is told")
    parser.add_argument("--timestamps", default=timestamps, choices=["none", "segment", "word"])
    return parser


def _arguments() -> argparse.Namespace:
    parser = table_arguments(__doc__, "none")
    parser.add_argument("--detect", action="store_true", help="do not tell the engine the language")
    parser.add_argument("--mode", default="chunked", choices=["chunked", "sequential"])
    parser.add_argument("--vad", action="store_true")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the texts of clips with errors")
    parser.add_argument("--out", type=Path, help="write the report and all texts as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
