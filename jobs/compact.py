"""`headrace compact`: few large files of many parts."""

from collections.abc import Sequence

from headrace.jobs.logs import print_line
from headrace.jobs.options import Parser
from headrace.pipelines.compaction import DEFAULT_BYTES, compact

DESCRIPTION = """\
Puts the parts of an output together into large files. Every reader reads them as before, the same command
resumes, status and report show the same run. Not while the run goes on; readers should wait too."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="headrace compact", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("output", metavar="OUTPUT", help="output directory of a run")
    parser.add_argument(
        "--target-mib",
        type=int,
        default=DEFAULT_BYTES >> 20,
        metavar="N",
        help=f"size of a large file in MiB (default: {DEFAULT_BYTES >> 20})",
    )
    parsed = parser.parse_args(list(argv))
    done = compact(parsed.output, target_bytes=parsed.target_mib << 20)
    print_line(f"parts       {done.num_parts:,} put into {done.num_files:,} files")
    return 0
