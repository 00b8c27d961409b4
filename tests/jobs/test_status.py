"""What `headrace status` tells of a run: done, running, stalled, broken or stopped, from its files alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.jobs.cli import main
from headrace.jobs.status import status_lines
from headrace.pipelines.output_directory import claim_output
from headrace.pipelines.run_view import read_run
from tests.pipelines.made_runs import make_generate_run


def test_a_done_run_is_told_in_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = make_generate_run(tmp_path, state="done")
    assert main(["status", output]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["state"] == "done"
    assert lines["rows"] == "40 of 40 (100%), 2 failed"
    assert lines["prompt_too_long"] == "2"
    assert lines["parts"] == "4 of 4"
    assert lines["throughput"].startswith("25.0 tokens/s")
    assert lines["speculation"] == (
        "75% of the proposed tokens accepted, 2.50 tokens a step with proposals, "
        "1.50 times as fast as without proposals"
    )
    assert main(["status", output, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["rows"], found["errors"]) == ("done", 40, {"prompt_too_long": 2})
    assert found["ratios"]["speculation_acceptance_rate"] == 0.75
    assert found["ratios"]["speculation_speed_up"] == 1.5


def test_the_state_of_an_unfinished_run(tmp_path: Path):
    output = make_generate_run(tmp_path, state="running", parts=2)
    assert main(["status", output]) == 1
    assert read_run(output).state == "stopped"
    with claim_output(output):
        view = read_run(output)
    assert view.state == "running"
    assert view.eta_s == pytest.approx(100, rel=0.2)
    assert "left        about 1 min" in "\n".join(status_lines(view))
    later = replace(view, now=view.now + 400)
    assert later.state == "stalled"
    assert any("stalled: no row and no part for 8 min" in line for line in status_lines(later))
    assert replace(view, is_claimed=None).state == "running"
    beat = {"state": "running", "at": view.now - 10, "moved_at": view.now - 5, "rows_done": 25}
    far = replace(view, is_claimed=None, heartbeat=beat)
    assert (far.state, far.rows_in_flight, far.idle_s) == ("running", 5, pytest.approx(5))
    assert replace(far, now=view.now + 400).state == "stopped"
    broken = replace(view, record=replace(view.record, state="broken"))
    assert broken.state == "broken"


def test_a_directory_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["status", str(tmp_path)]) == 2
    assert "holds no run of headrace" in capsys.readouterr().err
