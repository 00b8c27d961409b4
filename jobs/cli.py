"""The `headrace` command: finds the subcommand, and turns its errors into one line and an exit code."""

import argparse
import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from headrace.jobs.errors import UsageError
from headrace.jobs.logs import open_standard_streams, set_up_logging, without_secrets
from headrace.jobs.names import nearest
from headrace.jobs.options import Parser
from headrace.jobs.stopping import RESUME, stopping_at_once

COMMANDS = {
    "transcribe": "recordings of speech to text",
    "generate": "prompts to the answers of a language model",
    "serve": "both engines behind an OpenAI-compatible HTTP server",
    "compile": "a model with its compiled programs in a directory, to start from at once",
    "chain": "runs that feed each other, described by a recipe",
    "plan": "how a run would be cut, and what it would take",
    "status": "how far a run is, from its output directory",
    "report": "a page of figures and charts of a run",
    "diff": "two runs compared row by row",
    "compact": "few large files of many parts",
    "score": "error rates of a transcription against references",
    "bench": "what the machine could do, and how near the engines come to it",
    "models": "which models can be run, and in which layouts",
    "demo": "both on small real inputs with small real models",
}
DONE, FAILED, BAD_ARGUMENTS = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 the run broke or rows failed where that counts, 2 bad arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_standard_streams()
    try:
        with stopping_at_once():
            return _run_command(arguments)
    except SystemExit as leaving:  # argparse has answered --help or --version
        return leaving.code if isinstance(leaving.code, int) else DONE
    except BrokenPipeError:  # the reader of our stdout has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except UsageError as error:
        _print_error(str(error))
        return BAD_ARGUMENTS
    except Exception as error:  # noqa: BLE001 - the last line of defence: every error gets its exit code
        return _report(error)


def _report(error: Exception) -> int:
    from headrace.audio import HeadraceError  # loads JAX, which `--help` need not

    if isinstance(error, HeadraceError):
        _print_error(str(error))
        return BAD_ARGUMENTS if isinstance(error, ValueError) else FAILED
    _print("".join(traceback.format_exception(error)))
    _print_error(f"the run broke: {_last_line(error)}: {RESUME}")
    return FAILED


def _run_command(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "--help"
    if command in COMMANDS:
        set_up_logging()
        return importlib.import_module(f"headrace.jobs.{command}").main(arguments[1:])
    if command.startswith("-"):
        _parser().parse_args(arguments or [command])
    raise UsageError(f"unknown command {command}{nearest(command, COMMANDS)} (see headrace --help)")


def _parser() -> Parser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    parser = Parser(
        prog="headrace",
        usage="headrace COMMAND ...",
        description="Runs Whisper and text models over whole datasets; results and metrics in Parquet.",
        epilog="\n".join(
            ["commands:", *lines, "", "headrace COMMAND --help lists the options of a command."]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = importlib.metadata.version("headrace")
    parser.add_argument("--version", action="version", version=f"headrace {version}")
    return parser


def _print_error(message: str) -> None:
    _print(f"headrace: {' '.join(message.split())}")


def _print(text: str) -> None:
    # A stderr that is closed is None, and print would then take stdout; one that nobody reads is no fault.
    if sys.stderr is not None:
        with suppress(OSError):
            print(without_secrets(text), file=sys.stderr)


def _last_line(error: Exception) -> str:
    """`Type: text` of an error, or the last line of its text: Beam puts a worker's traceback there."""
    lines = str(error).strip().splitlines()
    return lines[-1] if len(lines) > 1 else ": ".join([type(error).__name__, *lines])
