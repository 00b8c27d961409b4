"""What beam search, several draws and int8 weights do to Whisper's word error rate, speed and memory.

    python benchmarks/whisper_variants.py demo:whisper-tiny.en ../shared/data/speech.jsonl

All engines are made first; then each transcribes all clips in turn, so many rounds over, and the median
ratio of its time to that of the plain engine is shown. Clips as benchmarks/wer.py takes them, without the
long forms.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import jax
from wer import LONG_FORM, count_errors, read_table

from headrace.engines.whisper import WhisperConfig, WhisperEngine

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "int8": {"quantization": "int8"},
    "beams": {"beam_size": 5},
    "best-of": {"best_of": 5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Variants of Whisper's decoding beside each other.")
    parser.add_argument("model", help="a model spec")
    parser.add_argument("table", type=Path)
    parser.add_argument("--language", default="en")
    parser.add_argument("--timestamps", default="segment", choices=["none", "segment"])
    parser.add_argument("--variants", default="plain,int8,beams")
    parser.add_argument("--clips", type=int, help="only so many clips")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = [row for row in read_table(arguments.table, arguments.language) if LONG_FORM not in row["file"]]
    rows = rows[: arguments.clips]
    engines, sizes = {}, {}
    for name in arguments.variants.split(","):
        before = live_bytes()
        config = WhisperConfig(
            language=arguments.language, return_timestamps=arguments.timestamps, **VARIANTS[name]
        )
        engines[name] = WhisperEngine(arguments.model, config)
        sizes[name] = live_bytes() - before
    measured = measure(engines, rows, arguments)
    plain = next(iter(measured.values()))
    print(
        f"{len(rows)} clips, {sum(row['seconds'] for row in rows):.0f} s, {arguments.timestamps} timestamps"
    )
    print("| variant | word error rate | time, of the first variant's | weights and slots |")
    print("| --- | --- | --- | --- |")
    for name, (errors, words, seconds) in measured.items():
        ratio = statistics.median(own / base for own, base in zip(seconds, plain[2], strict=True))
        rate = 100 * errors / words
        print(f"| {name} | {rate:.2f} % ({errors}) | {ratio:.2f} | {sizes[name] / 2**20:.0f} MiB |")


def live_bytes() -> int:
    """Bytes of all arrays on the device."""
    return sum(array.nbytes for array in jax.live_arrays())


def measure(
    engines: dict[str, WhisperEngine], rows: list[dict[str, Any]], arguments: argparse.Namespace
) -> dict[str, tuple[int, int, list[float]]]:
    """Errors and words of each variant, and its seconds in each round; the first round warms up."""
    paths = [str(arguments.table.parent / row["file"]) for row in rows]
    counts: dict[str, tuple[int, int]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(arguments.rounds + 1):
        for name, engine in engines.items():
            started = time.perf_counter()
            results: Any = engine.transcribe(paths)
            if number:
                seconds[name].append(time.perf_counter() - started)
                continue
            pairs = [
                count_errors(row["text"], result["text"], arguments.language)
                for row, result in zip(rows, results, strict=True)
            ]
            counts[name] = (sum(errors for errors, _ in pairs), sum(words for _, words in pairs))
    return {name: (*counts[name], seconds[name]) for name in engines}


if __name__ == "__main__":
    main()
