"""What the borders of windows cost in errors: recordings joined in several orders, by each way to cut them.

    python benchmarks/window_borders.py demo:whisper-tiny.en ../shared/data/speech.jsonl --noise-db 25

The table is that of wer.py. All its clips are joined as they stand and in three orders drawn by seeds, and
the long recordings are taken as they are: a border falls into other words each time. With --noise-db noise,
most of it low, is added so far below each recording's level.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from wer import LONG_FORM, count_errors, read_table, table_arguments

from headrace.audio import SAMPLE_RATE, load_audio
from headrace.engines.whisper import WhisperConfig, WhisperEngine

ORDERS = (None, 1, 2, 3)
WAYS: dict[str, dict[str, Any]] = {
    "in pauses": {},
    "overlaps of 10 s": {"stride_length_s": 5.0},
    "sequential": {"mode": "sequential"},
}


class Joined(NamedTuple):
    """A recording and what is said in it."""

    waveform: np.ndarray
    text: str


def main() -> None:
    args = _arguments()
    recordings = [_with_noise(each, args.noise_db) for each in joined(args.table, args.language)]
    seconds = sum(len(each.waveform) for each in recordings) / SAMPLE_RATE
    print(f"{len(recordings)} recordings, {seconds:.0f} s")
    for way, options in WAYS.items():
        config = WhisperConfig(
            language=args.language, return_timestamps=args.timestamps, dtype=args.dtype, **options
        )
        with WhisperEngine(args.model, config) as engine:
            futures = [
                engine.submit({"array": each.waveform, "sampling_rate": SAMPLE_RATE}, request_id=str(i))
                for i, each in enumerate(recordings)
            ]
            texts = [future.result().text for future in futures]
            counts = engine.metrics()
        _print(way, recordings, texts, args.language)
        print(f"{'':18} {counts['windows']:.0f} windows, {counts['decoded_tokens']:.0f} tokens")


def joined(table: Path, language: str) -> Iterator[Joined]:
    """The long recordings, then all clips one after another in each order."""
    rows = read_table(table, language)
    sounds = {row["file"]: load_audio(str(table.parent / row["file"])).waveform for row in rows}
    yield from (Joined(sounds[row["file"]], row["text"]) for row in rows if LONG_FORM in row["file"])
    clips = [row for row in rows if LONG_FORM not in row["file"]]
    for seed in ORDERS:
        order = list(clips)
        if seed is not None:
            random.Random(seed).shuffle(order)
        waveform = np.concatenate([sounds[row["file"]] for row in order])
        yield Joined(waveform, " ".join(row["text"] for row in order))


def _with_noise(recording: Joined, noise_db: float | None) -> Joined:
    if noise_db is None:
        return recording
    spectrum = np.fft.rfft(np.random.default_rng(0).standard_normal(len(recording.waveform)))
    noise = np.fft.irfft(spectrum / np.sqrt(np.arange(len(spectrum)) + 1), len(recording.waveform))
    power = np.mean(np.square(recording.waveform)) / np.mean(np.square(noise)) * 10 ** (-noise_db / 10)
    return recording._replace(waveform=(recording.waveform + noise * np.sqrt(power)).astype(np.float32))


def _print(way: str, recordings: Sequence[Joined], texts: Sequence[str], language: str) -> None:
    counts = [count_errors(each.text, text, language) for each, text in zip(recordings, texts, strict=True)]
    errors, words = (sum(column) for column in zip(*counts, strict=True))
    print(f"{way:18} {100 * errors / words:.2f} %  errors {[each for each, _ in counts]} of {words}")


def _arguments() -> argparse.Namespace:
    parser = table_arguments(__doc__, "segment")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--noise-db", type=float, help="level of added noise below the recording's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
