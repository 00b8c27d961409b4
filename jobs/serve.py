"""`headrace serve`: both engines behind an OpenAI-compatible HTTP server."""

import argparse
from collections.abc import Sequence

from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser, add_options, config_values

DESCRIPTION = "Serves text and Whisper models over HTTP, in the form of OpenAI's API."


def main(argv: Sequence[str]) -> int:
    try:
        from headrace.engines.config_fields import from_flat  # JAX, which takes seconds
        from headrace.serving import ServeConfig, serve
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'headrace[serve]'") from error
    parser = Parser(
        prog="headrace serve",
        usage="headrace serve --model MODEL [--whisper-model MODEL] [options]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, ServeConfig)
    parsed = parser.parse_args(list(argv))
    try:
        config = from_flat(ServeConfig, config_values(parsed, ServeConfig))
    except ValueError as error:
        raise UsageError(str(error)) from error
    serve(config)
    return 0
