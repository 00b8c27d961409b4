"""What the subcommands share: a command line becomes a config, a summary becomes an exit code."""

import argparse
from collections.abc import Sequence
from typing import TypeVar

from headrace.engines.config_fields import from_flat
from headrace.jobs.beam_options import add_beam_options, check_beam_args
from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser, add_options, config_values
from headrace.pipelines import GenerateConfig, RunSummary, TranscribeConfig

ConfigT = TypeVar("ConfigT", GenerateConfig, TranscribeConfig)

_EPILOG = """\
Every other option is one of Apache Beam's, for example --runner=DataflowRunner or --direct_num_workers=4.
Exit codes: 0 done, 1 the run broke (or rows failed, with --fail-on-row-errors), 2 bad arguments.
"""


def read_arguments(
    argv: Sequence[str], command: str, config_class: type[ConfigT], description: str
) -> tuple[ConfigT, tuple[str, ...]]:
    """The config that a command line asks for, and the arguments that are Beam's.

    Raises:
      UsageError: an argument is unknown, missing or has a value that cannot be.
    """
    parser = Parser(
        prog=f"headrace {command}",
        usage=f"headrace {command} INPUT... --output DIR --model MODEL [options] [Beam options]",
        description=description,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, config_class)
    add_beam_options(parser, argv)
    parsed = parser.parse_intermixed_args(list(argv))
    beam_args = tuple(getattr(parsed, "beam_args", ()))
    check_beam_args(beam_args)
    try:
        return from_flat(config_class, config_values(parsed, config_class)), beam_args
    except ValueError as error:
        raise UsageError(str(error)) from error


def exit_code(config: GenerateConfig | TranscribeConfig, summary: RunSummary) -> int:
    return 1 if config.fail_on_row_errors and summary.rows_failed else 0
