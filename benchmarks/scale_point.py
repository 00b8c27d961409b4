"""One point of scale.py in a process of its own: prints count, seconds and peak memory as JSON."""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

TEXT_MODEL, SPEECH_MODEL = "demo:smollm2-135m", "demo:whisper-tiny.en"
SEED = 20261130
SAMPLE_S = 1.0
"""How often the memory of worker processes is looked at."""


class Point(NamedTuple):
    """What was done in what time."""

    count: float
    seconds: float
    peak_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curve", choices=tuple(CURVES))
    parser.add_argument("size", type=int)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    print(json.dumps(CURVES[args.curve](args.size, args.quick)._asdict()))


def rows(size: int, quick: bool) -> Point:
    """So many prompts of 16 tokens, 16 new ones each."""
    del quick
    return _generate(size, 16, 16, slots=256, max_model_len=256)


def prompt_length(size: int, quick: bool) -> Point:
    """Four prompts of so many tokens and one new one, after four others of the same length."""
    del quick
    point = _generate(4, size, 1, slots=4, max_model_len=8192)
    return point._replace(count=4 * size)


def slots(size: int, quick: bool) -> Point:
    """Twice as many prompts of 64 tokens as slots, 64 new ones each."""
    return _generate(2 * size, 64, 8 if quick else 64, slots=size, max_model_len=256)


def audio_length(size: int, quick: bool) -> Point:
    """One recording of so many seconds, no window of which is tried again: that depends on what is said."""
    del quick
    import soundfile

    from headrace.audio import load_audio
    from headrace.engines.whisper import WhisperConfig, WhisperEngine
    from headrace.jobs.demo_inputs import speech_folder

    once = WhisperConfig(temperatures=(0.0,))
    spoken = np.concatenate(
        [load_audio(str(path)).waveform for path in sorted(speech_folder().rglob("*.wav"))]
    )
    with tempfile.TemporaryDirectory() as scratch, WhisperEngine(SPEECH_MODEL, once) as engine:
        recordings = [Path(scratch) / name for name in ("warm.wav", "measured.wav")]
        for path, seconds in zip(recordings, (60, size), strict=True):
            with soundfile.SoundFile(path, "w", 16_000, 1) as file:
                for start in range(0, seconds * 16_000, len(spoken)):
                    file.write(spoken[: seconds * 16_000 - start])
        engine.transcribe(str(recordings[0]))
        started_s = time.perf_counter()
        engine.transcribe(str(recordings[1]))
        return Point(size, time.perf_counter() - started_s, _peak_mib())


def workers(size: int, quick: bool) -> Point:
    """`headrace generate` with so many worker processes: the whole command, models loaded and all."""
    count, new = (16, 8) if quick else (1024, 32)
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch) / "prompts.jsonl"
        lines = (json.dumps({"prompt": f"What is the number {n} good for?"}) for n in range(count))
        prompts.write_text("\n".join(lines) + "\n")
        command = [
            sys.executable,
            "-m",
            "headrace.jobs",
            "generate",
            str(prompts),
            "--output",
            f"{scratch}/out",
        ]
        command += ["--model", TEXT_MODEL, "--max-tokens", str(new), "--ignore-eos", "--max-num-seqs", "128"]
        command += ["--max-model-len", "256", "--rows-per-part", str(count // 8)]
        command += ["--direct_running_mode=multi_processing", f"--direct_num_workers={size}"]
        started_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        with _watched(process.pid) as peak:
            _, errors = process.communicate()
        seconds = time.perf_counter() - started_s
        assert process.returncode == 0, errors[-2000:]
        return Point(count * new, seconds, peak[0])


CURVES = {
    "rows": rows,
    "prompt-length": prompt_length,
    "slots": slots,
    "audio-length": audio_length,
    "workers": workers,
}


def _generate(num_rows: int, prompt_tokens: int, new_tokens: int, *, slots: int, max_model_len: int) -> Point:
    """Random prompts through a loaded engine whose programs are compiled."""
    from headrace.engines.llm import LLM, EngineConfig, SamplingParams

    config = EngineConfig.of(max_num_seqs=max(slots, 2), max_model_len=max_model_len)
    with LLM(TEXT_MODEL, config) as llm:
        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        llm.precompile(sampling_params=params)
        draw = np.random.default_rng(SEED)
        warm, measured = (
            draw.integers(100, llm.model_config.vocab_size, (count, prompt_tokens)).tolist()
            for count in (min(num_rows, 4), num_rows)
        )
        llm.generate(prompt_token_ids=warm, sampling_params=params)
        started_s = time.perf_counter()
        outputs = llm.generate(prompt_token_ids=measured, sampling_params=params)
        seconds = time.perf_counter() - started_s
    assert all(len(one.outputs[0].token_ids) == new_tokens for one in outputs)
    return Point(num_rows * new_tokens, seconds, _peak_mib())


def _peak_mib() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _watched(pid: int) -> Iterator[list[float]]:
    """The most memory, in MiB, that a process and its children had together: pages they share count once."""
    peak, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(SAMPLE_S):
            peak[0] = max(peak[0], _tree_mib(pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _tree_mib(pid: int) -> float:
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 2**20


if __name__ == "__main__":
    main()
