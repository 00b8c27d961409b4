"""The same rows give the same texts under every runner and number of workers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MakePrompts = Callable[[int], Path]

NUM_ROWS = 300
WORKER = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
PORTABLE = ("--runner=PortableRunner", "--job_endpoint=embed")
RUNNERS = {
    "in memory": ("--direct_running_mode=in_memory",),
    "2 threads": (),
    "4 threads": ("--direct_num_workers=4",),
    "2 processes": ("--direct_running_mode=multi_processing", "--direct_num_workers=2"),
    "loopback": (*PORTABLE, "--environment_type=LOOPBACK"),
    "worker processes": (
        *PORTABLE,
        "--environment_type=beam:env:harness_subprocess_python:v1",
        f"--environment_config={WORKER}",
        "--sdk_worker_parallelism=2",
    ),
}

LAUNCH = """
import json, sys
from headrace.pipelines import GenerateConfig, run_generate
if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    options["inputs"] = tuple(options["inputs"])
    summary = run_generate(GenerateConfig.of(**options), sys.argv[2:])
    print(json.dumps([summary.rows, summary.rows_failed, summary.model_loads]))
"""


def run(options: dict[str, Any], beam_args: tuple[str, ...]) -> list[int]:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", LAUNCH, json.dumps(options), *beam_args]
    shown = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=500
    )
    return json.loads(shown.stdout.strip().splitlines()[-1])


def texts(output: Path) -> list[tuple[int, str]]:
    rows = ds.dataset(output).to_table(columns=["row", "text"]).to_pylist()
    return sorted((row["row"], row["text"]) for row in rows)


def test_three_hundred_rows_have_the_same_texts_under_every_runner(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    source = make_prompts(NUM_ROWS)
    options = {"inputs": (str(source),), "model": tiny_llm, "max_tokens": 12, "temperature": 0.8}
    options |= {"max_num_seqs": 8, "max_model_len": 128, "deterministic": True, "rows_per_part": 25}
    found = {}
    for number, (name, beam_args) in enumerate(RUNNERS.items()):
        output = tmp_path / f"out-{number}"
        rows, failed, loads = run({**options, "output": str(output)}, beam_args)
        assert (rows, failed) == (NUM_ROWS, 0), name
        assert 1 <= loads <= 2, name
        found[name] = texts(output)
    assert len({row for row, _ in found["in memory"]}) == NUM_ROWS
    for name, each in found.items():
        assert each == found["in memory"], name
