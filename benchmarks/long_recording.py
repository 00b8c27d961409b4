"""Whether an hours-long recording takes memory and time by the minute: a generated one through an engine.

    python benchmarks/long_recording.py demo:whisper-tiny.en --hours 3

The recording is written as an 8-bit file of 8 kHz noise. Windows are counted while it is transcribed: the
seconds that an hour of it takes at its start and at its end are shown beside each other, and the largest
resident memory above the loaded engine's. Texts are kept to a few tokens, as noise has none.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import soundfile

from headrace.engines.whisper import TranscribeOptions, WhisperConfig, WhisperEngine

RATE = 8_000
WATCH_S = 0.05


class Seen(NamedTuple):
    """The engine at one moment."""

    at_s: float
    windows: float
    resident_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of a long recording.")
    parser.add_argument("model", help="a model spec")
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--mode", default="chunked", choices=["chunked", "sequential"])
    parser.add_argument("--max-length", type=int, default=12, help="most tokens of a window")
    arguments = parser.parse_args()
    config = WhisperConfig(max_length=arguments.max_length, temperatures=(0.0,), mode=arguments.mode)
    with tempfile.TemporaryDirectory() as folder, WhisperEngine(arguments.model, config) as engine:
        path = Path(folder) / "long.wav"
        write_noise(path, minutes=round(60 * arguments.hours))
        engine.transcribe(np.full(960_000, 0.01, np.float32))
        seen = watch(engine, path)
    first, last = seen[0], seen[-1]
    total = last.windows - first.windows
    third = total / 3
    begin_s = time_at(seen, first.windows + third) - first.at_s
    end_s = last.at_s - time_at(seen, first.windows + 2 * third)
    peak = max(each.resident_bytes for each in seen) - first.resident_bytes
    print(f"{arguments.hours:g} h, {arguments.mode}: {total:.0f} windows in {last.at_s - first.at_s:.1f} s")
    print(f"first third {begin_s:.1f} s, last third {end_s:.1f} s: ratio {end_s / begin_s:.3f}")
    print(f"largest resident memory above the loaded engine: {peak / 2**20:.0f} MiB")


def write_noise(path: Path, minutes: int) -> None:
    minute = (np.random.default_rng(0).normal(size=RATE * 60) * 0.1).astype(np.float32)
    with soundfile.SoundFile(path, "w", samplerate=RATE, channels=1, subtype="PCM_U8") as file:
        for _ in range(minutes):
            file.write(minute)


def watch(engine: WhisperEngine, path: Path) -> list[Seen]:
    """What was seen from before the recording to its end."""
    process, ended = psutil.Process(), threading.Event()
    seen: list[Seen] = []

    def look() -> None:
        windows = engine.metrics()["windows"]
        seen.append(Seen(time.perf_counter(), windows, process.memory_info().rss))

    def run() -> None:
        while not ended.wait(WATCH_S):
            look()

    look()
    thread = threading.Thread(target=run)
    thread.start()
    result = engine.submit(path, TranscribeOptions(), request_id="long").result()
    ended.set()
    thread.join()
    look()
    assert result.error is None, result.error
    return seen


def time_at(seen: list[Seen], windows: float) -> float:
    """When so many windows were done."""
    return next(each.at_s for each in seen if each.windows >= windows)


if __name__ == "__main__":
    main()
