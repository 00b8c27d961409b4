"""What `headrace diff` tells of two runs."""

from pathlib import Path

import pytest

from headrace.jobs.cli import main
from tests.pipelines.made_runs import make_generate_run


def lines_of(text: str) -> dict[str, str]:
    return {line[:19].strip(): line[19:] for line in text.splitlines() if not line.startswith(" ")}


def test_equal_runs_are_told_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one = make_generate_run(tmp_path, state="done", name="one")
    other = make_generate_run(tmp_path, state="done", name="other")
    assert main(["diff", one, other]) == 0
    found = lines_of(capsys.readouterr().out)
    assert found["rows in both"] == "40, matched by id"
    assert found["equal"] == "40 (100.00%)"
    assert found["throughput"] == "25.0, 25.0 tokens/s"


def test_other_texts_and_missing_rows_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    one = make_generate_run(tmp_path, state="done", name="one")
    other = make_generate_run(tmp_path, state="running", parts=3, name="other", text="reply")
    assert main(["diff", one, other, "--show", "1"]) == 1
    out = capsys.readouterr().out
    found = lines_of(out)
    assert found["rows in both"] == "30, matched by id"
    assert found["only in A, in B"] == "10, 0"
    assert found["equal"] == "2 (6.67%)"
    assert found["other text"] == "28"
    assert found["differs"] == "prompts.jsonl#0"
    assert "reply" not in out
    assert main(["diff", one, other, "--show", "1", "--with-content"]) == 1
    assert "  A: answer 0\n  B: reply 0" in capsys.readouterr().out


def test_what_is_no_run_is_refused(tmp_path: Path):
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 2
