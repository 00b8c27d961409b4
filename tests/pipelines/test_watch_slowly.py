"""Runs in processes of their own: a killed worker, secrets, a bucket that grows, recordings of hours."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.dataset as ds
import pytest
import soundfile

from headrace.pipelines import TranscribeConfig, run_transcribe
from headrace.pipelines.journal import past_attempts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
MakePrompts = Callable[[int], Path]

SMALL = ["--max-num-seqs", "8", "--max-model-len", "128", "--dtype", "float32", "--deterministic"]


def launch(job: str, source: object, output: Path, model: str, *more: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "headrace.jobs", job, str(source), "--output", str(output)]
    command += ["--model", model, *more]
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**kept, **environment})


def wait_for_part(process: Any, output: Path) -> None:
    while not list(output.glob("part-*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def rows_of(output: Path, *columns: str) -> list[dict[str, Any]]:
    return ds.dataset(output).to_table(columns=list(columns)).to_pylist()


def test_a_killed_worker_process_ends_the_run_within_a_minute_and_it_goes_on_later(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    options = [*SMALL, "--max-tokens", "64", "--ignore-eos", "--rows-per-part", "10", "--no-supervise"]
    options += ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    source = make_prompts(400)
    process = launch("generate", source, output, tiny_llm, *options)
    wait_for_part(process, output)
    workers = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "sdk_worker_main" in " ".join(child.cmdline())
    ]
    max(workers, key=lambda child: child.memory_info().rss).send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    _, err = process.communicate(timeout=60)
    print(f"the run ended {time.monotonic() - killed_s:.1f} s after its worker")
    assert process.returncode == 1
    assert err.count("a worker process was ended by SIGKILL: the run ends") == 1
    assert "Traceback" not in err
    again = launch("generate", source, output, tiny_llm, *options)
    again.communicate(timeout=600)
    assert again.returncode == 0
    assert sorted(row["row"] for row in rows_of(output, "row")) == list(range(400))


class Signed(http.server.BaseHTTPRequestHandler):
    """Gives prompts to whoever has the signature."""

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(CONTENT)

    def _answer(self, content: bytes) -> None:
        self.send_response(200 if "canary-signature" in self.path else 403)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the log is stderr."""


CONTENT = b'{"prompt": "canary-prompt"}\n{"prompt": "canary-long-prompt ' + b"x" * 500 + b'"}\ncanary-line\n'


@pytest.fixture
def signed_address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Signed)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/prompts.jsonl?X-Amz-Signature=canary-signature"
    server.shutdown()
    server.server_close()


def test_prompts_tokens_and_signatures_are_only_in_the_results(
    tiny_llm: str, signed_address: str, tmp_path: Path
):
    output = tmp_path / "out"
    process = launch(
        "generate", signed_address, output, tiny_llm, *SMALL, "--max-tokens", "4", HF_TOKEN="canary-token"
    )
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert sorted(row["prompt"] or "" for row in rows_of(output, "prompt")) == [
        "",
        "canary-long-prompt " + "x" * 500,
        "canary-prompt",
    ]
    page = ["report", str(output), "--to", str(output / "report.html")]
    for command in (["status", str(output)], page):
        told = subprocess.run(
            [sys.executable, "-m", "headrace.jobs", *command], capture_output=True, text=True, check=True
        )
        err += told.stdout + told.stderr
    assert "canary" not in err
    assert (output / "report.html").exists()
    for path in output.rglob("*"):
        if path.is_file() and not path.name.startswith("part-"):
            assert b"canary" not in path.read_bytes(), path
    for part in output.glob("part-*"):
        assert b"canary-signature" not in part.read_bytes()
        assert b"canary-token" not in part.read_bytes()


def write_noise(path: Path, seconds: float) -> None:
    samples = np.random.default_rng(0).normal(0, 0.01, round(8000 * seconds)).astype(np.float32)
    soundfile.write(path, samples, 8000, subtype="PCM_16")


def test_a_bucket_that_has_grown_costs_the_new_recordings_and_no_old_part_is_touched(tmp_path: Path):
    folder, output = tmp_path / "bucket", tmp_path / "out"
    folder.mkdir()
    for number in range(100):
        write_noise(folder / f"a{number:03d}.wav", 0.3)
    config = TranscribeConfig(
        inputs=(str(folder),), output=str(output), model="demo:whisper-tiny.en", rows_per_part=40
    )
    assert run_transcribe(config).rows_run == 100
    before = {part.name: part.stat().st_mtime_ns for part in output.glob("part-*")}
    for number in range(50):
        write_noise(folder / f"a{number:03d}b.wav", 0.3)
    summary = run_transcribe(config)
    assert (summary.rows, summary.rows_run) == (150, 50)
    after = {part.name: part.stat().st_mtime_ns for part in output.glob("part-*")}
    assert {name: after[name] for name in before} == before
    assert len({row["source"] for row in rows_of(output, "source")}) == 150


def test_a_kill_costs_at_most_one_bound_of_work_for_each_worker(tmp_path: Path):
    """Twenty short recordings and one of three hours; a part holds at most 15 s, or one recording."""
    folder, output = tmp_path / "set", tmp_path / "out"
    folder.mkdir()
    for number in range(20):
        write_noise(folder / f"short-{number:02d}.wav", 3.0)
    soundfile.write(folder / "long.wav", np.zeros(3 * 3600 * 8000, np.int16), 8000, subtype="PCM_16")
    options = ["--work-per-part", "15", "--no-supervise", "--direct_num_workers=2"]
    process = launch("transcribe", folder, output, "demo:whisper-tiny.en", *options)
    wait_for_part(process, output)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cuts = json.loads((output / "__run" / "run.json").read_text())["shards"][0]["cuts"]
    assert [stop for stop, _ in cuts] == [1, 6, 11, 16, 21]
    in_flight = {attempt.name.partition(".parquet")[0] for attempt in past_attempts(str(output))}
    assert len(in_flight) <= 2
    for name in in_flight:
        _, work = cuts[int(name.split("-")[2])]
        assert work in (15.0, 3 * 3600.0)
    before = {part.name: part.stat().st_mtime_ns for part in output.glob("part-*")}
    again = launch("transcribe", folder, output, "demo:whisper-tiny.en", *options)
    again.communicate(timeout=900)
    assert again.returncode == 0
    after = {part.name: part.stat().st_mtime_ns for part in output.glob("part-*")}
    assert {name: after[name] for name in before} == before
    assert len({row["source"] for row in rows_of(output, "source")}) == 21
