"""Rows that end a process, hang it or end an engine get an error; their neighbours get their texts."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from headrace.pipelines import GenerateConfig, InputError, RunError, run_generate, supervise

SMALL: dict[str, Any] = {"max_tokens": 4, "max_num_seqs": 4, "max_model_len": 64, "dtype": "float32"}
SMALL |= {"deterministic": True, "rows_per_part": 10, "ignore_eos": True}
HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def poison_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets this process and those that it starts import poison.py by its name."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("XLA_FLAGS")
    yield
    sys.modules.pop("poison", None)


def make_config(model: str, directory: Path, poison: dict[int, str], **options: Any) -> GenerateConfig:
    """The config of a run over 40 prompts, some of which are poison."""
    source = directory / "data" / "prompts.jsonl"
    source.parent.mkdir()
    prompts = [poison.get(number, f"prompt {number}") for number in range(40)]
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return GenerateConfig.of(
        **{**SMALL, "inputs": (str(source),), "output": str(directory / "out"), "model": model, **options}
    )


def errors(config: GenerateConfig) -> dict[int, str]:
    """The errors of the results by row, after a look at whether every row is there once."""
    rows = ds.dataset(config.output).to_table(columns=["row", "text", "error"]).to_pylist()
    assert sorted(row["row"] for row in rows) == list(range(40))
    assert all((row["text"] is None) == (row["error"] is not None) for row in rows)
    return {row["row"]: row["error"] for row in rows if row["error"] is not None}


def test_a_row_that_ends_the_engine_gets_an_error_and_no_other_row_does(tiny_llm: str, tmp_path: Path):
    from poison import run_poisoned

    config = make_config(tiny_llm, tmp_path, {13: "break"})
    summary = run_poisoned(config)
    assert summary.errors_by_kind == {"crash": 1}
    assert errors(config) == {
        13: "the row ended the process that ran it (the engine failed), alone in the engine"
    }
    assert list((tmp_path / "out" / "__run" / "journal").iterdir()) == []


@pytest.mark.slow
def test_rows_that_crash_and_hang_the_process_get_errors_and_no_other_row_does(
    tiny_llm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    config = make_config(tiny_llm, tmp_path, {13: "crash", 27: "hang", 31: "break"}, row_timeout_s=4.0)
    seen = []
    summary = supervise(config, on_progress=seen.append, target="poison:run_poisoned")
    found = errors(config)
    assert sorted(found) == [13, 27, 31]
    assert "SIGABRT" in found[13]
    assert "row_timeout_s" in found[27]
    assert summary.errors_by_kind == {"crash": 2, "hang": 1}
    assert seen[-1].rows_done == 40
    assert 4 <= caplog.text.count("it is started again") <= 6  # a busy machine may seem to hang once more
    clean = tmp_path / "clean"
    clean.mkdir()
    unbroken = make_config(tiny_llm, clean, {})
    run_generate(unbroken)
    assert texts(config).items() - texts(unbroken).items() == set()


def texts(config: GenerateConfig) -> dict[int, str]:
    rows = ds.dataset(config.output).to_table(columns=["row", "text", "error"]).to_pylist()
    return {row["row"]: row["text"] for row in rows if row["error"] is None}


@pytest.mark.slow
def test_a_worker_process_that_dies_of_a_row_is_noticed_and_the_run_goes_on(
    tiny_llm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = make_config(tiny_llm, tmp_path, {13: "crash"})
    arguments = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    summary = supervise(config, arguments, target="poison:run_poisoned")
    assert list(errors(config)) == [13]
    assert summary.rows == 40
    assert "a worker process was ended by SIGABRT" in caplog.text


def test_what_the_process_refuses_is_raised_here(tiny_llm: str, tmp_path: Path):
    config = make_config(tiny_llm, tmp_path, {}, prompt_column="question")
    with pytest.raises(InputError, match=r"prompts\.jsonl has no column 'question'"):
        supervise(config)


@pytest.mark.slow
def test_a_process_that_dies_each_time_it_starts_is_given_up(tiny_llm: str, tmp_path: Path):
    config = make_config(tiny_llm, tmp_path, {})
    with pytest.raises(RunError, match=r"again and again .* exit code 3"):
        supervise(config, target="poison:die")
