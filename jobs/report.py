"""`headrace report`: a page of figures and charts of a run."""

import logging
from collections.abc import Sequence
from pathlib import Path

from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser
from headrace.jobs.status import status_lines
from headrace.pipelines import OutputError
from headrace.pipelines.report import report_page, report_text
from headrace.pipelines.run_view import read_run

logger = logging.getLogger(__name__)

DESCRIPTION = """\
Writes one HTML page about the run in an output directory, running or done: throughput over time, latencies,
lengths, occupancy, errors, the slowest and the longest rows, the configuration. The page needs no network."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="headrace report", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("output", metavar="OUTPUT", help="output directory of a run")
    parser.add_argument(
        "--to", default="report.html", metavar="FILE", help="the page's file (default: report.html)"
    )
    parser.add_argument(
        "--with-content", action="store_true", help="show texts, and recordings with their segments"
    )
    parser.add_argument("--text", action="store_true", help="print the figures as text instead")
    parsed = parser.parse_args(list(argv))
    if parsed.text and parsed.with_content:
        raise UsageError("--text shows figures only: leave out --with-content or --text")
    view = read_run(parsed.output)
    if parsed.text:
        print("\n".join([*status_lines(view), "", *report_text(view)]))
        return 0
    page = report_page(view, with_content=parsed.with_content)
    try:
        Path(parsed.to).write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {parsed.to}: {error.strerror}: give another --to") from error
    logger.info("wrote %s: %d kB", parsed.to, len(page.encode()) // 1000)
    return 0
