"""What the subcommands share: a command line becomes a config, a summary becomes an exit code."""

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.engines.config_fields import from_flat
from headrace.jobs.beam_options import add_beam_options, check_beam_args
from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser, add_options, config_values
from headrace.pipelines import GenerateConfig, Progress, RunSummary, TranscribeConfig, supervise

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


def run_job(
    config: GenerateConfig | TranscribeConfig,
    beam_args: Sequence[str],
    on_progress: Callable[[Progress], None] | None,
) -> RunSummary:
    """Summary of the run that a config asks for, supervised where it says so."""
    if config.supervise:
        return supervise(config, beam_args, on_progress)
    from headrace.pipelines import run_generate, run_transcribe  # JAX and Beam, which take seconds

    if isinstance(config, GenerateConfig):
        return run_generate(config, beam_args, on_progress)
    return run_transcribe(config, beam_args, on_progress)


def exit_code(config: GenerateConfig | TranscribeConfig, summary: RunSummary) -> int:
    """1 where rows failed and that counts, else 0."""
    allowed = 0 if config.fail_on_row_errors else summary.rows
    if config.max_error_rate is not None:
        allowed = min(allowed, int(config.max_error_rate * summary.rows))
    return 1 if summary.rows_failed > allowed else 0
