"""Whisper on many languages: which is found, and the error rates against the texts.

    python benchmarks/languages.py demo:whisper-base ../shared/data/speech.jsonl

No language is told. Rows of the table that are English or other encodings of an earlier row are left out.
Word error rates are after Whisper's basic normaliser; languages without spaces have character error rates.
With --peer a model in the faster-whisper layout transcribes the same files with the same greedy settings
(in an environment that has faster-whisper).
"""

import argparse
import importlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jiwer
from whisper_normalizer.basic import BasicTextNormalizer

SURE_S = 5.0
UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")


class Heard(NamedTuple):
    """What an engine made of a recording."""

    language: str | None
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description="Languages found, and error rates.")
    parser.add_argument("model", help="a model spec; with --peer a directory")
    parser.add_argument("table", type=Path)
    parser.add_argument("--peer", action="store_true", help="transcribe with faster-whisper")
    parser.add_argument("--mode", choices=("chunked", "sequential"), default="chunked")
    arguments = parser.parse_args()
    lines = arguments.table.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["language"] != "en" and not row["variant"]]
    paths = [str(arguments.table.parent / row["file"]) for row in rows]
    transcribe = by_faster_whisper if arguments.peer else partial(by_headrace, mode=arguments.mode)
    heard = transcribe(arguments.model, paths)
    print("| language | files | found, of those above 5 s | found | error rate |")
    print("| --- | --- | --- | --- | --- |")
    for language in sorted({row["language"] for row in rows}):
        pairs = [pair for pair in zip(rows, heard, strict=True) if pair[0]["language"] == language]
        print(line_of(language, pairs), flush=True)
    wrong = [
        (row["file"], row["language"], each.language)
        for row, each in zip(rows, heard, strict=True)
        if row["seconds"] > SURE_S and each.language != row["language"]
    ]
    print(f"wrong above {SURE_S:g} s: {wrong}")


def line_of(language: str, pairs: Sequence[tuple[dict[str, Any], Heard]]) -> str:
    long = [each.language == language for row, each in pairs if row["seconds"] > SURE_S]
    found = [each.language == language for _, each in pairs]
    rate = error_rate(language, [(row["text"], each.text) for row, each in pairs])
    return f"| {language} | {len(pairs)} | {sum(long)} of {len(long)} | {sum(found)} | {rate} |"


def error_rate(language: str, texts: Sequence[tuple[str, str]]) -> str:
    """Errors of all texts over the length of all references, in percent."""
    normalize = BasicTextNormalizer()
    said, got = zip(*((normalize(one), normalize(other)) for one, other in texts), strict=True)
    if language in UNSPACED:
        said, got = (["".join(text.split()) for text in each] for each in (said, got))
        return f"{100 * jiwer.cer(list(said), list(got)):.1f} % of characters"
    return f"{100 * jiwer.wer(list(said), list(got)):.1f} % of words"


def by_headrace(model: str, paths: list[str], *, mode: Literal["chunked", "sequential"]) -> list[Heard]:
    from headrace.engines.whisper import WhisperConfig, WhisperEngine

    with WhisperEngine(model, WhisperConfig(return_timestamps="segment", mode=mode)) as engine:
        results: Any = engine.transcribe(paths)
    return [Heard(each["language"], each["text"]) for each in results]


def by_faster_whisper(model: str, paths: list[str]) -> list[Heard]:
    peer = importlib.import_module("faster_whisper").WhisperModel(
        model, device="cpu", compute_type="float32", cpu_threads=2
    )
    heard = []
    for path in paths:
        segments, info = peer.transcribe(path, beam_size=1, best_of=1, condition_on_previous_text=False)
        heard.append(Heard(info.language, "".join(segment.text for segment in segments)))
    return heard


if __name__ == "__main__":
    main()
