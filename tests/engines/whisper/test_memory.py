"""Memory stays what it is, over hours of one recording and over many recordings. Weights are random."""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile

from headrace.engines.whisper import TranscribeOptions, WhisperConfig, WhisperEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MB = 1 << 20
CONFIG = {"dtype": "float32", "temperatures": (0.0,), "max_length": 12, "decode_burst": 4}


class PeakMemory:
    """The largest resident memory of this process while the block runs."""

    def __enter__(self) -> "PeakMemory":
        self._process, self._stop = psutil.Process(), threading.Event()
        self.before = self.peak = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, self._process.memory_info().rss)


@pytest.fixture(scope="module")
def three_hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "three_hours.wav"
    minute = (np.random.default_rng(0).normal(size=8_000 * 60) * 0.1).astype(np.float32)
    with soundfile.SoundFile(path, "w", samplerate=8_000, channels=1, subtype="PCM_U8") as file:
        for _ in range(180):
            file.write(minute)
    return path


@pytest.mark.parametrize(
    "options", [{}, {"mode": "sequential"}, {"vad": True}], ids=["chunked", "sequential", "vad"]
)
def test_three_hours_take_the_memory_of_minutes(random_whisper, three_hours: Path, options: dict):
    with WhisperEngine(random_whisper(num_mels=80), WhisperConfig(batch_size=8, **CONFIG)) as engine:
        minute = np.zeros(960_000, np.float32) + 0.01
        engine.transcribe(minute, **options)
        with PeakMemory() as memory:
            request = TranscribeOptions(**options)
            result = engine.submit(three_hours, request, request_id="long").result()
    assert result.error is None
    assert result.duration_s == pytest.approx(3 * 3600)
    assert (memory.peak - memory.before) / MB < 600
    ends = [segment.end_s for segment in result.segments]
    assert ends == sorted(ends)


WATCH_MEMORY = """
import gc, io, json, sys
import numpy as np, psutil, soundfile
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.whisper import WhisperConfig, WhisperEngine
from tests.engines.whisper.test_memory import CONFIG, MB, allocated_bytes
rng = np.random.default_rng(0)
seen = []
with WhisperEngine(open_checkpoint(sys.argv[1]), WhisperConfig(batch_size=8, **CONFIG)) as engine:
    for _ in range(20):
        files = []
        for number in range(50):  # the same lengths in every fifty: they must not count as growth
            file = io.BytesIO()
            sound = (rng.normal(size=16_000 + 4_000 * number) * 0.1).astype(np.float32)
            soundfile.write(file, sound, 16_000, format="WAV")
            files.append(file.getvalue())
        results = engine.transcribe(files)
        assert [result["error"] for result in results] == [None] * 50
        del files, file, sound, results
        gc.collect()
        seen.append((allocated_bytes() / MB, psutil.Process().memory_info().rss / MB))
print(json.dumps(seen))
"""


def test_memory_is_flat_over_a_thousand_recordings(random_whisper):
    """In a process of its own: the checks of types keep every function that is made while an engine runs.

    That is 1 MB per 100 recordings. By default the C library learns to take large arrays from its arenas,
    whose size then swings by 20 MB; with a fixed threshold they are given back, and nothing swings.
    """
    command = [sys.executable, "-c", WATCH_MEMORY, random_whisper(num_mels=80).model.spec]
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    in_use, resident = zip(*json.loads(done.stdout.splitlines()[-1]), strict=True)
    assert growth(in_use) < 0.1, f"MB per 100 recordings; {in_use}"
    assert growth(resident) < 0.1, f"MB per 100 recordings; {resident}"


def growth(fifties: Sequence[float]) -> float:
    """MB per 100 recordings after the first 100: from the median of five to that of the last five."""
    fifties = fifties[2:]
    return 2 * (statistics.median(fifties[-5:]) - statistics.median(fifties[:5])) / (len(fifties) - 5)


def allocated_bytes() -> int:
    """What the C library has given out and not got back; what it holds in reserve is given back first."""
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _MallocInfo
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd


class _MallocInfo(ctypes.Structure):
    """Of glibc, before what is not used: arena, ordblks, smblks, hblks; after it: fordblks, keepcost."""

    _fields_ = (
        ("others", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("more", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("rest", ctypes.c_size_t * 2),
    )
