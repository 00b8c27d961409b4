"""`headrace diff`: two runs compared row by row."""

from collections.abc import Iterator, Sequence

from headrace.jobs.display import SHORT_UNITS, format_rate
from headrace.jobs.options import Parser
from headrace.pipelines.comparison import Comparison, compare_runs
from headrace.pipelines.run_view import read_run

DESCRIPTION = """\
Compares two outputs row by row, by id, or by source and row where ids repeat: texts, errors, lengths, speed.
Exit code: 0 where every row of one is in the other with the same text or failed in both, else 1."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="headrace diff", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("one", metavar="A", help="output directory of a run")
    parser.add_argument("other", metavar="B", help="output directory of another run")
    parser.add_argument(
        "--show", type=int, default=10, metavar="N", help="ids of so many rows that differ (default: 10)"
    )
    parser.add_argument("--with-content", action="store_true", help="show their texts or errors too")
    parsed = parser.parse_args(list(argv))
    one, other = read_run(parsed.one), read_run(parsed.other)
    found = compare_runs(one, other, max_shown=max(parsed.show, 0))
    print("\n".join(diff_lines(found, SHORT_UNITS[one.unit], with_content=parsed.with_content)))
    return 0 if found.num_equal == found.num_matched and not found.num_only_one + found.num_only_other else 1


def diff_lines(found: Comparison, unit: str, *, with_content: bool) -> Iterator[str]:
    """Counts, speeds and options of two runs, and the rows that differ, a line each."""
    yield f"rows in both       {found.num_matched:,}, matched by {found.matched_by}"
    yield f"only in A, in B    {found.num_only_one:,}, {found.num_only_other:,}"
    share = found.num_equal / found.num_matched if found.num_matched else 0.0
    yield f"equal              {found.num_equal:,} ({share:.2%})"
    yield f"other text         {found.num_changed:,}"
    yield f"failed only in A   {found.num_newly_fine:,}"
    yield f"failed only in B   {found.num_newly_failed:,}"
    one, other = found.speeds
    yield f"throughput         {format_rate(one.units_per_s)}, {format_rate(other.units_per_s)} {unit}"
    yield f"median latency     {one.latency_p50_s:.3g}, {other.latency_p50_s:.3g} s"
    yield f"95 % below         {one.latency_p95_s:.3g}, {other.latency_p95_s:.3g} s"
    yield f"mean length        {one.mean_length:,.1f}, {other.mean_length:,.1f} tokens"
    yield from (f"option             {each}" for each in found.options)
    for row in found.changed:
        yield f"differs            {row.id}"
        if with_content:
            yield f"  A: {row.one}"
            yield f"  B: {row.other}"
