"""The options that belong to Apache Beam: told from ours and from typing mistakes, then passed through."""

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from headrace.jobs.errors import UsageError
from headrace.jobs.names import nearest
from headrace.jobs.options import option_names

_NEGATIVE_NUMBER = re.compile(r"-\.?\d")


def add_beam_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Lets `parser` collect Beam's options in `beam_args` where `argv` holds options that are not ours.

    Beam is imported in that case only.

    Raises:
      UsageError: an option is neither ours nor that of any PipelineOptions class of Beam.
    """
    ours = option_names(parser)
    foreign = [name for name in options_in(argv) if name not in ours]
    if not foreign:
        return
    of_beam = option_names(beam_parser())
    for name in foreign:
        if name not in of_beam:
            raise UsageError(f"unknown option {name}{nearest(name, [*ours, *of_beam])}")
    for name in dict.fromkeys(foreign):
        parser.add_argument(
            name,
            dest="beam_args",
            action=PassThrough,
            nargs=of_beam[name].nargs,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


class PassThrough(argparse.Action):
    """Collects an option and its value as one token, unread."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        token = f"{option_string}={values}" if isinstance(values, str) else option_string
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, []), token])


def options_in(argv: Sequence[str]) -> list[str]:
    """The option names of a command line, values cut off: `--a=1 b --c` gives --a and --c."""
    before_rest = argv[: argv.index("--")] if "--" in argv else argv
    names = [token.partition("=")[0] for token in before_rest if token.startswith("-") and token != "-"]
    return [name for name in names if " " not in name and not _NEGATIVE_NUMBER.match(name)]


def check_beam_args(beam_args: Sequence[str]) -> None:
    """Finds what Beam would stumble over after the run has begun.

    Raises:
      UsageError: an option that Beam does not know, a value that it does not take, a runner that is not
        there, or an option that the runner lacks.
    """
    if not beam_args:
        return
    beam_parser().parse_args(list(beam_args))
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
    from apache_beam.runners.runner import create_runner

    options = PipelineOptions(list(beam_args))
    name = options.view_as(StandardOptions).runner
    if name is None:
        return
    try:
        runner = create_runner(name)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise UsageError(f"Apache Beam: {error}") from error
    for message in PipelineOptionsValidator(options, runner).validate():
        raise UsageError(f"Apache Beam: {message}")


def beam_parser() -> argparse.ArgumentParser:
    """A parser that knows the options of every PipelineOptions class of Beam and raises UsageError."""
    from apache_beam.options.pipeline_options import PipelineOptions

    captured: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=captured.append)
    captured[0].error = _refuse
    return captured[0]


def _refuse(message: str) -> NoReturn:
    raise UsageError(f"Apache Beam: {message}")
