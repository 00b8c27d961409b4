"""The command on a tiny random model: results, resume, refusals, Ctrl-C; the demo on real ones."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.jobs import run_generate
from headrace.jobs.cli import main
from headrace.jobs.demo_inputs import PROMPTS


def write_prompts(path: Path, prompts) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def parts(output: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.parquet")}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    """Eight prompts and one that is longer than --max-model-len."""
    return write_prompts(tmp_path_factory.mktemp("input") / "prompts.jsonl", [*PROMPTS, "word " * 400])


@pytest.fixture(scope="module")
def answers(prompts, tiny_llm, tmp_path_factory) -> Path:
    """Output of a finished run in three parts."""
    output = tmp_path_factory.mktemp("output") / "answers"
    assert main(arguments(prompts, tiny_llm, output)) == 0
    return output


def arguments(prompts: Path, model: str, output: Path, *more: str) -> list[str]:
    few = ["--chat", "--max-tokens", "6", "--max-model-len", "256", "--rows-per-part", "4"]
    return [
        "generate",
        str(prompts),
        "--output",
        str(output),
        "--model",
        model,
        *few,
        "--no-supervise",
        *more,
    ]


def test_every_prompt_has_its_row_and_the_one_that_failed_says_why(answers):
    rows = sorted(pq.read_table(answers).to_pylist(), key=lambda row: row["row"])
    assert [row["prompt"] for row in rows[:8]] == list(PROMPTS)
    assert all(row["error"] is None and row["text"] for row in rows[:8])
    assert (rows[8]["text"], rows[8]["finish_reason"]) == (None, "error")
    assert "max_model_len" in rows[8]["error"]
    assert (answers / "__run" / "_SUCCESS").exists()


def test_the_same_command_again_keeps_every_part_and_says_so(answers, prompts, tiny_llm, capsys):
    before = parts(answers)
    assert main(arguments(prompts, tiny_llm, answers)) == 0
    assert parts(answers) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert "rows        9, 1 failed\n" in err
    assert "3, of which 3 were there already" in err
    assert not any(prompt in err for prompt in PROMPTS)


def test_failed_rows_change_the_exit_code_only_where_asked(answers, prompts, tiny_llm):
    assert main(arguments(prompts, tiny_llm, answers, "--fail-on-row-errors")) == 1


def test_python_takes_up_what_the_command_wrote(answers, prompts, tiny_llm):
    before = parts(answers)
    summary = run_generate(
        prompts,
        answers,
        tiny_llm,
        chat=True,
        max_tokens=6,
        max_model_len=256,
        rows_per_part=4,
        supervise=False,
    )
    assert (summary.rows, summary.rows_run, summary.parts_reused) == (9, 0, 3)
    assert parts(answers) == before


def test_bad_arguments_that_only_the_run_can_find_are_one_line_and_exit_code_2(
    answers, prompts, tiny_llm, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    cases = {
        "missing input": arguments(tmp_path / "none-*.jsonl", tiny_llm, tmp_path / "a"),
        "unwritable output": arguments(prompts, tiny_llm, tmp_path / "file" / "b"),
        "unknown model": [*arguments(prompts, tiny_llm, tmp_path / "c"), "--model", "no/such/model"],
        "unknown demo model": [*arguments(prompts, tiny_llm, tmp_path / "d"), "--model", "demo:no-such"],
        "other parameters": arguments(prompts, tiny_llm, answers, "--temperature", "0.7"),
        "unknown option": arguments(prompts, tiny_llm, tmp_path / "e", "--max-token", "3"),
    }
    capsys.readouterr()
    for name, argv in cases.items():
        assert main(argv) == 2, name
        # Programs that the engine of another test still compiles are told meanwhile.
        told = [line for line in capsys.readouterr().err.splitlines() if " compiled " not in line]
        assert len(told) == 1, (name, told)
        assert told[0].startswith("headrace: "), (name, told)


@pytest.mark.slow
def test_the_demo_shows_both_tables_each_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for _ in range(2):
        assert main(["demo", "--output", str(tmp_path / "demo")]) == 0
        shown = capsys.readouterr().out
        assert "quick brown fox" in shown
        assert all(name in shown for name in ("beckett.wav", "counting.wav", "hello_world.wav"))
        assert all(prompt.split()[0] in shown for prompt in PROMPTS)
        assert str(tmp_path / "demo" / "answers") in shown


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_where_it_was(tiny_llm, tmp_path):
    prompts = write_prompts(tmp_path / "prompts.jsonl", [f"Count from {n} on." for n in range(64)])
    output = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "headrace.jobs",
        *arguments(prompts, tiny_llm, output, "--max-tokens", "32", "--supervise"),
    ]
    environment = {**os.environ, "XLA_FLAGS": ""}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not parts(output):
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.endswith("stopped: run the same command again to resume\n")
    before = parts(output)
    assert len(before) < 16
    subprocess.run(command, check=True, env=environment)
    after = parts(output)
    assert {name: after[name] for name in before} == before
    rows = pq.read_table(output, columns=["row", "error"]).to_pylist()
    assert sorted(row["row"] for row in rows) == list(range(64))
