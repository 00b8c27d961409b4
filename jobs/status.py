"""`headrace status`: how far a run is, from its output directory alone."""

from collections.abc import Sequence

from headrace.jobs.display import SHORT_UNITS, format_rate, format_seconds, ratio_lines
from headrace.jobs.options import Parser
from headrace.pipelines.run_view import RunView, as_json, read_run

DESCRIPTION = """\
Shows how far the run in an output directory is: rows, errors, rate, and whether it goes on. It reads the
directory alone, so that it can be asked from anywhere, on any file system.
Exit code: 0 where the run is done or running, 1 where it is stalled, broken or stopped."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="headrace status", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("output", metavar="OUTPUT", help="output directory of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args(list(argv))
    view = read_run(parsed.output)
    print(as_json(view) if parsed.json else "\n".join(status_lines(view)))
    return 0 if view.state in ("done", "running") else 1


def status_lines(view: RunView) -> list[str]:
    """State, rows, errors by kind, parts, rate and time left, one a line."""
    total = view.rows_total
    share = f" ({view.rows / total:.0%})" if total else ""
    lines = [
        f"output      {view.output}",
        f"job         {view.record.job}, {view.record.model.spec}",
        f"state       {state_text(view)}",
        f"rows        {view.rows:,} of {total:,}{share}, {view.rows_failed:,} failed",
    ]
    if view.rows_in_flight:
        lines.append(f"  finished  {view.rows_in_flight:,} more in parts that are not committed yet")
    by_count = sorted(view.errors.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"  {kind:<9} {count:,}" for kind, count in by_count]
    lines.append(f"parts       {len(view.footers):,} of {view.parts_total:,}")
    if view.units_per_s > 0:
        rate = f"{format_rate(view.units_per_s)} {SHORT_UNITS[view.unit]}"
        lines.append(f"throughput  {rate}, {view.units:,.0f} {view.unit} in all")
    lines += ratio_lines(view.ratios)
    if view.eta_s is not None:
        lines.append(f"left        about {format_seconds(view.eta_s)}")
    return lines


def state_text(view: RunView) -> str:
    """The state, with the time since the last commit where that tells something."""
    ago = format_seconds(view.idle_s)
    match view.state:
        case "done":
            return "done"
        case "running":
            return f"running, last row or part {ago} ago" if view.footers else "running, no part yet"
        case "stalled":
            slowest = format_seconds(view.usual_part_s)
            return f"stalled: no row and no part for {ago}, where the slowest took {slowest}"
        case "broken":
            return "broke off: the same command goes on from there"
        case "stopped":
            return f"stopped {ago} after its last part: the same command goes on from there"
