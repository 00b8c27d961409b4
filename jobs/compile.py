"""`headrace compile`: a model as an engine loads it, with its compiled programs, in a directory."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from headrace.engines.config_fields import from_flat
from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser, add_options, config_values
from headrace.pipelines import GenerateConfig, TranscribeConfig

USAGE = "headrace compile MODEL --output DIR [options of headrace generate or transcribe]"
DESCRIPTION = (
    "Stores a model's weights as this machine multiplies them, its tokenizer, its config and the compiled "
    "programs. --model DIR starts from there without tracing or compiling, on a machine of the same kind. "
    "It takes the options of headrace generate, or those of headrace transcribe for a Whisper model, so "
    "that the command line of the job can be taken over: the job is to have the same options. Those that are "
    "not about the engine do nothing."
)

ConfigT = TypeVar("ConfigT", GenerateConfig, TranscribeConfig)


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0].startswith("-"):
        Parser(prog="headrace compile", usage=USAGE, description=DESCRIPTION).parse_args(list(argv))
        raise UsageError("the first argument is the model: headrace compile MODEL --output DIR")
    started_s = time.monotonic()
    output = _compile_speech(argv) if _is_speech(argv[0]) else _compile_text(argv)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    print(f"{output}: {size / 1e6:.0f} MB, {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    return 0


def _is_speech(model: str) -> bool:
    from headrace.engines.checkpoints import open_checkpoint

    return open_checkpoint(model).config.get("model_type") == "whisper"


def _compile_text(argv: Sequence[str]) -> Path:
    config = _read(argv, GenerateConfig)
    output = _free(config.output)
    from headrace.pipelines.generate import GenerateWork

    with GenerateWork(config=config).load() as llm:
        llm.save_artifact(output)
    return output


def _compile_speech(argv: Sequence[str]) -> Path:
    config = _read(argv, TranscribeConfig)
    output = _free(config.output)
    from headrace.pipelines.transcribe import TranscribeWork

    with TranscribeWork(config=config).load() as engine:
        engine.save_artifact(output)
    return output


def _read(argv: Sequence[str], config_class: type[ConfigT]) -> ConfigT:
    """The config of the job that the artifact is for; the model stands in the place of its input."""
    parser = Parser(
        prog="headrace compile",
        usage=USAGE,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, config_class)
    parsed = parser.parse_intermixed_args([*argv, "--model", argv[0]])
    if len(parsed.inputs) > 1:
        raise UsageError(f"{parsed.inputs[1]} is one argument too many: an artifact is of one model")
    try:
        return from_flat(config_class, config_values(parsed, config_class))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _free(output: str) -> Path:
    path = Path(output)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{output} is there already: name a new directory, or remove it")
    return path
