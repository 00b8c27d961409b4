"""Progress lines and the summary: what they say, and that they stay plain without a terminal."""

import io
import logging
from dataclasses import replace

import pytest
from rich.console import Console

from headrace.jobs import display
from headrace.jobs.display import ProgressDisplay, format_seconds, progress_text, summary_lines
from headrace.jobs.logs import stderr_console
from headrace.pipelines import Progress, RunSummary

PROGRESS = Progress(
    rows_done=1200,
    rows_total=4000,
    rows_failed=2,
    units_done=9.0,
    units_per_s=310.4,
    eta_s=80.2,
    parts_done=3,
    parts_total=9,
)
SUMMARY = RunSummary(
    rows=4000,
    rows_failed=3,
    errors_by_kind={"prompt_empty": 1, "prompt_too_long": 2},
    units=1e6,
    unit="tokens",
    rows_run=2000,
    units_run=12_000.0,
    wall_s=40.0,
    output="out",
    parts_total=8,
    parts_reused=4,
    model_loads=1,
)


def test_a_progress_line_tells_rows_failures_rate_and_time_left():
    assert progress_text(PROGRESS, "tokens") == "1,200 of 4,000 rows, 2 failed, 310 tokens/s, 1 min 20 s left"
    unknown = replace(PROGRESS, eta_s=None, units_per_s=42.15)
    assert progress_text(unknown, "audio seconds") == "1,200 of 4,000 rows, 2 failed, 42.1 audio s/s"
    nothing_yet = replace(PROGRESS, rows_done=0, rows_failed=0, eta_s=None, units_per_s=0.0)
    assert progress_text(nothing_yet, "tokens") == "0 of 4,000 rows, 0 failed"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.21, "3.2 s"), (45.4, "45 s"), (59.9, "1 min 0 s"), (80.0, "1 min 20 s"), (7530.0, "2 h 5 min")],
)
def test_times_are_written_with_their_units(seconds, text):
    assert format_seconds(seconds) == text


def test_without_a_terminal_progress_is_a_log_line_now_and_then(caplog, monkeypatch):
    now = 100.0
    monkeypatch.setattr(display.time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO, logger="headrace"), ProgressDisplay("tokens") as show:
        for now in (100.0, 101.0, 109.9, 110.1, 111.0, 120.2):  # noqa: B007 - read by the clock above
            show(PROGRESS)
    assert len(caplog.messages) == 3
    assert "\x1b" not in caplog.text


def test_on_a_terminal_progress_is_one_line_that_is_cleared(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        display, "stderr_console", lambda: Console(file=screen, force_terminal=True, width=120, _environ={})
    )
    with ProgressDisplay("tokens") as show:
        show(PROGRESS)
        show(replace(PROGRESS, rows_done=4000, eta_s=0.0))
    assert "4,000 of 4,000 rows, 2 failed" in screen.getvalue()
    assert screen.getvalue().rstrip("\n").endswith("\x1b[2K")


def test_the_summary_tells_rows_errors_by_kind_throughput_parts_and_place():
    assert summary_lines(SUMMARY) == [
        "rows        4,000, 3 failed",
        "  prompt_too_long 2",
        "  prompt_empty 1",
        "throughput  300 tokens/s: 12,000 tokens in 40 s",
        "parts       8, of which 4 were there already",
        "output      out",
    ]


def test_the_summary_tells_what_speculation_gained():
    ratios = {"speculation_acceptance_rate": 0.624, "speculation_tokens_per_step": 2.5}
    line = "speculation 62% of the proposed tokens accepted, 2.50 tokens a step with proposals"
    assert line in summary_lines(replace(SUMMARY, ratios=ratios))
    # Steps in which nothing could be proposed.
    ratios = {"speculation_tokens_per_step": 1.0}
    assert "speculation 1.00 tokens a step with proposals" in summary_lines(replace(SUMMARY, ratios=ratios))


def test_a_run_that_found_everything_done_claims_no_throughput():
    lines = summary_lines(replace(SUMMARY, rows_run=0, units_run=0.0, wall_s=0.0, parts_reused=8))
    assert not any(line.startswith("throughput") for line in lines)


def test_the_console_writes_to_the_stderr_of_the_moment(capsys):
    stderr_console().print("one")
    assert capsys.readouterr().err == "one\n"
