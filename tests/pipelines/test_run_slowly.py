"""Runs that take processes: kill -9 and resume, worker processes, memory over many rows."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pytest

from headrace.pipelines import GenerateConfig, run_generate

pytestmark = pytest.mark.slow
MakePrompts = Callable[[int], Path]

SMALL: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 128, "dtype": "float32", "deterministic": True}

# Each takes a launch, which loads a model: more are asked for where there is time.
KILLS = int(os.environ.get("HEADRACE_TEST_KILLS", "8"))

TWO_WORKERS = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")

LAUNCH = """
import json, sys
from headrace.pipelines import GenerateConfig, run_generate
options = json.loads(sys.argv[1])
options["inputs"] = tuple(options["inputs"])
if __name__ == "__main__":
    summary = run_generate(GenerateConfig.of(**options), sys.argv[2:])
    print(json.dumps([summary.rows, summary.rows_run, summary.parts_reused, summary.model_loads]))
"""

WATCH_MEMORY = """
import json, sys, psutil
from headrace.pipelines import GenerateConfig, run_generate
options = json.loads(sys.argv[1])
options["inputs"] = tuple(options["inputs"])
seen = []
def note(progress):
    seen.append((progress.rows_done, psutil.Process().memory_info().rss))
if __name__ == "__main__":
    run_generate(GenerateConfig.of(**options), on_progress=note)
    print(json.dumps(seen))
"""


def launch(script: str, options: dict[str, Any], *beam_args: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", script, json.dumps(options), *beam_args]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )


def result_of(process: subprocess.Popen[str]) -> Any:
    out, _ = process.communicate(timeout=540)
    assert process.returncode == 0
    return json.loads(out.strip().splitlines()[-1])


def make_options(model: str, source: Path, output: Path, **options: Any) -> dict[str, Any]:
    return {**SMALL, "inputs": (str(source),), "output": str(output), "model": model, **options}


def keys_and_texts(output: Path) -> list[tuple[str, int, str]]:
    rows = ds.dataset(output).to_table(columns=["source", "row", "text"]).to_pylist()
    return sorted((row["source"], row["row"], row["text"]) for row in rows)


def parts_and_times(output: Path) -> dict[str, int]:
    return {part.name: part.stat().st_mtime_ns for part in output.glob("part-*")}


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes in which Beam runs the chunks of a launch."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "sdk_worker_main" in " ".join(child.cmdline())]


def test_kill_9_loses_and_doubles_nothing(tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path):
    output = tmp_path / "out"
    options = make_options(
        tiny_llm, make_prompts(400), output, max_tokens=64, rows_per_part=20, ignore_eos=True
    )
    process = launch(LAUNCH, options)
    deadline = time.monotonic() + 300
    while len(parts_and_times(output)) < 5:
        assert process.poll() is None, "the run ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = parts_and_times(output)
    assert 5 <= len(before) < 20
    assert not (output / "__run" / "_SUCCESS").exists()

    rows, rows_run, parts_reused, loads = result_of(launch(LAUNCH, options))
    assert (rows, rows_run, parts_reused, loads) == (400, 400 - 20 * len(before), len(before), 1)
    after = parts_and_times(output)
    assert {name: after[name] for name in before} == before
    found = keys_and_texts(output)
    assert [row for _, row, _ in found] == list(range(400))
    assert (output / "__run" / "_SUCCESS").exists()
    assert list((output / "__run" / "tmp").iterdir()) == []

    unbroken = tmp_path / "unbroken"
    run_generate(GenerateConfig.of(**{**options, "output": str(unbroken)}))
    assert keys_and_texts(unbroken) == found


@pytest.mark.timeout(7200)
def test_many_kills_lose_and_double_nothing_and_change_no_text(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    """A moment after a launch has committed something it is killed, or one of its two workers is.

    So it reads, computes or writes. A run whose worker dies ends by itself.
    """
    moments = random.Random(0)
    output = tmp_path / "out"
    num_rows = 200 * KILLS
    options = make_options(
        tiny_llm, make_prompts(num_rows), output, max_tokens=16, rows_per_part=4, ignore_eos=True
    )
    for number in range(KILLS):
        before = len(parts_and_times(output))
        is_worker = number % 5 == 4
        process = launch(LAUNCH, options, *(TWO_WORKERS if is_worker else ()))
        while process.poll() is None and len(parts_and_times(output)) == before:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.05))
        assert process.poll() is None, f"the run ended before kill {number}"
        if is_worker:
            moments.choice(workers_of(process)).kill()
            assert process.wait(60) != 0
        process.kill()
        process.communicate()
    rows, *_ = result_of(launch(LAUNCH, options))
    assert rows == num_rows
    found = keys_and_texts(output)
    assert [row for _, row, _ in found] == list(range(num_rows))
    unbroken = tmp_path / "unbroken"
    run_generate(GenerateConfig.of(**{**options, "output": str(unbroken)}))
    assert keys_and_texts(unbroken) == found


def test_worker_processes_load_one_engine_each_and_give_the_same_rows(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    source = make_prompts(60)
    loads, rows = [], []
    for mode, workers in (("in_memory", 1), ("multi_threading", 2), ("multi_processing", 2)):
        output = tmp_path / mode
        options = make_options(tiny_llm, source, output, max_tokens=16, rows_per_part=5)
        beam_args = [f"--direct_running_mode={mode}", f"--direct_num_workers={workers}"]
        loads.append(result_of(launch(LAUNCH, options, *beam_args))[3])
        rows.append(keys_and_texts(output))
    assert loads == [1, 1, 2]
    assert len(rows[0]) == 60
    assert rows[0] == rows[1] == rows[2]


def test_memory_is_flat_over_two_thousand_prompts(tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path):
    options = make_options(tiny_llm, make_prompts(2000), tmp_path / "out", max_tokens=32, rows_per_part=50)
    seen = result_of(launch(WATCH_MEMORY, options))
    after_500 = next(memory for rows, memory in seen if rows >= 500)
    last_rows, last = seen[-1]
    assert last_rows == 2000
    assert last < 1.05 * after_500, f"{after_500 >> 20} MiB after 500 rows, {last >> 20} MiB after 2000"
