"""The report of a run: figures, no content unless asked for, and a page that a real browser shows."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headrace.jobs.cli import main
from headrace.pipelines.report import report_page, report_text
from headrace.pipelines.report.charts import histogram, nice_ceiling, plain
from headrace.pipelines.report.figures import rows_at_work, share_in_use, throughput
from headrace.pipelines.run_view import read_run
from tests.browser import open_browser
from tests.pipelines.made_runs import make_generate_run, make_transcribe_run

SHOTS = Path(__file__).resolve().parents[2] / "build" / "report"


def test_the_page_holds_figures_and_no_content(tmp_path: Path):
    view = read_run(make_generate_run(tmp_path, state="done"))
    page = report_page(view, with_content=False)
    assert "canary" not in page
    assert "X-Signature" not in page
    assert page.count("<figure>") >= 6
    assert "prompt_too_long" in page
    assert "39 of 40" not in page
    assert "<b>75%</b><span>of the proposed tokens accepted</span>" in page
    assert "<b>2.50</b><span>tokens a step with proposals</span>" in page
    assert "<b>1.50</b><span>times as fast as without proposals</span>" in page
    shown = report_page(view, with_content=True)
    assert "canary-prompt &lt;script&gt;" in shown
    assert "<script" not in shown
    lines = list(report_text(view))
    assert not any("canary" in line for line in lines)
    assert any(line.startswith("slowest") for line in lines)


def test_the_command_writes_the_page_or_prints_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = make_generate_run(tmp_path, state="done")
    to = tmp_path / "page.html"
    assert main(["report", output, "--to", str(to)]) == 0
    assert to.read_text().startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out == ""
    assert main(["report", output, "--text"]) == 0
    out = capsys.readouterr().out
    assert "state       done" in out
    assert "latency_s: 38 rows" in out
    assert main(["report", str(tmp_path / "none")]) == 2
    assert main(["report", output, "--text", "--with-content"]) == 2


def test_units_of_a_part_are_spread_over_its_time(tmp_path: Path):
    view = read_run(make_generate_run(tmp_path, state="done"))
    points = throughput(view.footers)
    width = points[1][0] - points[0][0]
    assert sum(rate * width for _, rate in points) == pytest.approx(view.units)
    assert {round(rows, 6) for _, rows in rows_at_work(view.footers)} == {8.0}
    for counter, share in (("slot_steps", 0.75), ("page_steps", 0.1)):
        found = share_in_use(view.footers, counter)
        assert found == [(pytest.approx(10.0 * n), pytest.approx(share)) for n in range(1, 5)]


def test_histograms_have_round_borders_and_count_every_value():
    bars = histogram([0.13, 0.9, 4.1, 7.7, 7.9], max_bars=8)
    assert [bar.start for bar in bars] == [pytest.approx(float(n)) for n in range(8)]
    assert sum(bar.height for bar in bars) == 5
    assert histogram([3.0, 3.0])[0].height == 2
    assert histogram([]) == []
    assert [nice_ceiling(value) for value in (0.0, 0.11, 3.0, 100.0)] == [1.0, 0.2, 5.0, 100.0]
    assert [plain(value) for value in (0.25, 3.0, 1200.0, 45000.0, 3.2e6)] == [
        "0.25",
        "3",
        "1,200",
        "45k",
        "3.2M",
    ]


def test_recordings_are_drawn_with_their_segments_only_on_request(tmp_path: Path):
    rng = np.random.default_rng(0)
    (tmp_path / "audio").mkdir()
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / "audio" / name, rng.normal(0, 0.1, 16000).astype(np.float32), 16000)
    view = read_run(make_transcribe_run(tmp_path, tmp_path / "audio"))
    assert "<audio" not in report_page(view, with_content=False)
    page = report_page(view, with_content=True)
    assert page.count('<svg class="wave"') == 2
    assert page.count('class="segment0"') == 2
    sound = re.search(r'src="data:audio/flac;base64,([^"]*)"', page)
    assert sound is not None
    assert base64.b64decode(sound.group(1)).startswith(b"fLaC")


@pytest.mark.parametrize(("name", "width", "height"), [("desktop", 1280, 900), ("phone", 390, 844)])
def test_a_browser_shows_the_page_without_errors_and_without_network(
    tmp_path: Path, name: str, width: int, height: int
):
    page = tmp_path / "report.html"
    page.write_text(report_page(read_run(make_generate_run(tmp_path, state="done")), with_content=True))
    with open_browser() as browser:
        browser.open(page, width=width, height=height)
        browser.screenshot(SHOTS / f"{name}.png")
        charts = browser.value(
            "JSON.stringify([...document.querySelectorAll('figure svg')].map(svg => {"
            "const box = svg.getBoundingClientRect();"
            "return [box.width, box.height, svg.querySelectorAll('.bar, .line').length]}))"
        )
        for chart_width, chart_height, shapes in json.loads(charts):
            assert 300 < chart_width <= width
            assert chart_height > 120
            assert shapes > 0
        assert browser.value("document.documentElement.scrollWidth") <= width
        told = [event for event in browser.events if event["method"] in _COMPLAINTS]
        assert told == []
        asked = [
            event["params"]["request"]["url"]
            for event in browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert asked == [page.as_uri()]


_COMPLAINTS = (
    "Runtime.consoleAPICalled",
    "Runtime.exceptionThrown",
    "Log.entryAdded",
    "Network.loadingFailed",
)
