"""What goes wrong outside of the engine: disks, tables that go, wrong columns; and what is done again."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from headrace.engines.llm import LLM, RequestOutput
from headrace.pipelines import GenerateConfig, OutputError, RunError, run_generate
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.run import run_work
from headrace.pipelines.scans import TableRow
from headrace.pipelines.work import WorkRow

SMALL: dict[str, Any] = {"max_tokens": 4, "max_num_seqs": 4, "max_model_len": 64, "dtype": "float32"}
SMALL |= {"deterministic": True, "rows_per_part": 5, "ignore_eos": True}


def write_prompts(path: Path, count: int, **columns: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    rows = [{"prompt": f"prompt {number}", **columns} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_config(model: str, source: Path, output: Path, **options: Any) -> GenerateConfig:
    return GenerateConfig.of(
        **{**SMALL, "inputs": (str(source),), "output": str(output), "model": model, **options}
    )


def rows_of(output: Path) -> list[dict[str, Any]]:
    table = ds.dataset(output).to_table().sort_by([("source", "ascending"), ("row", "ascending")])
    return table.to_pylist()


class FlakyWork(GenerateWork):
    """The job in which a row fails for as long as a file is there."""

    def submit(self, engine: LLM, row: WorkRow) -> "Future[RequestOutput]":
        if row.key["row"] == 2 and Path(f"{self.config.output}.flaky").exists():
            raise KeyError("flaky")
        return super().submit(engine, row)


def test_retry_errors_runs_the_failed_rows_again_and_only_those(tiny_llm: str, tmp_path: Path):
    source = write_prompts(tmp_path / "data" / "a.jsonl", 10)
    output, flaky = tmp_path / "out", tmp_path / "out.flaky"
    flaky.touch()
    assert run_work(FlakyWork(config=make_config(tiny_llm, source, output))).rows_failed == 1
    before = rows_of(output)
    flaky.unlink()
    assert run_work(FlakyWork(config=make_config(tiny_llm, source, output))).rows_failed == 1
    summary = run_work(FlakyWork(config=make_config(tiny_llm, source, output, retry_errors=True)))
    assert (summary.rows, summary.rows_failed, summary.units) == (10, 0, 40.0)
    after = rows_of(output)
    assert (after[2]["error"], after[2]["completion_tokens"]) == (None, 4)
    assert [row for row in after if row["row"] != 2] == [row for row in before if row["row"] != 2]


class DeletingWork(GenerateWork):
    """The job whose second table goes when the first row is read."""

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        Path(path).with_name("b.jsonl").unlink(missing_ok=True)
        return super().prepare(row, path, source, content)


def test_a_table_that_goes_in_the_middle_costs_its_own_parts_only(tiny_llm: str, tmp_path: Path):
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        source = write_prompts(tmp_path / "data" / name, 5)
    output = tmp_path / "out"
    config = make_config(tiny_llm, tmp_path / "data", output)
    arguments = ["--direct_running_mode=in_memory"]
    work = DeletingWork(config=config)
    with pytest.raises(RunError, match=r"b\.jsonl is missing: No such file") as caught:
        run_work(work, arguments)
    assert "\n" not in str(caught.value)
    assert {row["source"] for row in rows_of(output)} >= {"c.jsonl"}
    write_prompts(source.with_name("b.jsonl"), 5)
    assert run_generate(config).rows == 15


class FillingWork(GenerateWork):
    """The job during which the disk of the output fills up."""

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        filler = Path(self.config.output).with_name("filler")
        if not filler.exists():
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        return super().prepare(row, path, source, content)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a thread may still look at it


def test_a_full_disk_ends_the_run_with_what_is_missing_and_it_goes_on_later(
    tiny_llm: str, tmp_path: Path, small_disk: Path
):
    config = make_config(tiny_llm, write_prompts(tmp_path / "data" / "a.jsonl", 20), small_disk / "out")
    with pytest.raises(RunError, match=r"parts? with \d+ rows of a\.jsonl (is|are) missing: No space left"):
        run_work(FillingWork(config=config))
    (small_disk / "filler").unlink()
    assert run_generate(config).rows == 20


def test_a_wrong_column_stops_a_run_with_an_error_rate_early(tiny_llm: str, tmp_path: Path):
    source = write_prompts(tmp_path / "data" / "a.jsonl", 2000, text=None)
    config = make_config(
        tiny_llm,
        source,
        tmp_path / "out",
        prompt_column="text",
        max_error_rate=0.1,
        rows_per_part=500,
    )
    with pytest.raises(RunError, match=r"rows failed, more than max_error_rate 0\.1 allows") as caught:
        run_generate(config)
    (tried,) = re.findall(r"\d+ of (\d+) rows failed", str(caught.value))
    assert 100 <= int(tried) <= 500
    assert not list((tmp_path / "out").glob("part-*"))


def test_hours_that_are_over_end_the_run_which_goes_on_later(tiny_llm: str, tmp_path: Path):
    source = write_prompts(tmp_path / "data" / "a.jsonl", 10)
    with pytest.raises(RunError, match=r"0 of 2 parts committed: .*max_hours, 1e-09, are over"):
        run_generate(make_config(tiny_llm, source, tmp_path / "out", max_hours=1e-9))
    assert run_generate(make_config(tiny_llm, source, tmp_path / "out")).rows == 10


def test_overwrite_begins_anew_where_another_run_was(tiny_llm: str, tmp_path: Path):
    source = write_prompts(tmp_path / "data" / "a.jsonl", 10)
    output = tmp_path / "out"
    run_generate(make_config(tiny_llm, source, output))
    other = make_config(tiny_llm, source, output, max_tokens=3)
    with pytest.raises(OutputError, match="overwrite"):
        run_generate(other)
    run_generate(make_config(tiny_llm, source, output, max_tokens=3, overwrite=True))
    assert {row["completion_tokens"] for row in rows_of(output)} == {3}
    assert len(rows_of(output)) == 10
