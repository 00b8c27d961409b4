"""Whisper on many languages: which is found, and the error rates against the texts.

    python benchmarks/languages.py demo:whisper-base ../shared/data/speech.jsonl

No language is told. Rows of the table that are English or other encodings of an earlier row are left out.
Word error rates are after Whisper's basic normaliser; languages without spaces have character error rates.
With --peer a model in the faster-whisper layout transcribes the same files with the same settings in float32
(in an environment that has faster-whisper). What a recording leaves of a window it fills with zeros of the
scaled spectrogram, a faint noise; openai/whisper has silence there, as with --peer-silence.
"""

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jiwer
import numpy as np
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
    parser.add_argument("--dtype", default="auto", help="of Headrace's engine")
    parser.add_argument("--beam-size", type=int, default=1)
    parser.add_argument(
        "--peer-silence", action="store_true", help="with --peer: windows are filled with silence"
    )
    arguments = parser.parse_args()
    lines = arguments.table.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["language"] != "en" and not row["variant"]]
    paths = [str(arguments.table.parent / row["file"]) for row in rows]
    heard = by_faster_whisper(arguments, paths) if arguments.peer else by_headrace(arguments, paths)
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


def by_headrace(arguments: argparse.Namespace, paths: list[str]) -> list[Heard]:
    from headrace.engines.whisper import WhisperConfig, WhisperEngine

    config = WhisperConfig(
        return_timestamps="segment",
        mode=arguments.mode,
        dtype=arguments.dtype,
        beam_size=arguments.beam_size,
    )
    with WhisperEngine(arguments.model, config) as engine:
        results: Any = engine.transcribe(paths)
    return [Heard(each["language"], each["text"]) for each in results]


def by_faster_whisper(arguments: argparse.Namespace, paths: list[str]) -> list[Heard]:
    if arguments.peer_silence:
        vars(importlib.import_module("faster_whisper.transcribe"))["pad_or_trim"] = filled_with_silence
    peer = importlib.import_module("faster_whisper").WhisperModel(
        arguments.model, device="cpu", compute_type="float32", cpu_threads=2
    )
    settings = {"beam_size": arguments.beam_size, "best_of": 1, "condition_on_previous_text": False}
    heard = []
    for path in paths:
        segments, info = peer.transcribe(path, **settings)
        heard.append(Heard(info.language, "".join(segment.text for segment in segments)))
    return heard


def filled_with_silence(spectrogram: np.ndarray, length: int = 3000) -> np.ndarray:
    """The window with digital silence after it: 8 decades, which are 2 after scaling, below its peak."""
    window = spectrogram[..., :length]
    missing = ((0, 0),) * (window.ndim - 1) + ((0, length - window.shape[-1]),)
    return np.pad(window, missing, constant_values=float(window.max()) - 2)


if __name__ == "__main__":
    main()
