"""`headrace chain`: runs that feed each other, described by a recipe."""

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.jobs.beam_options import add_beam_options, check_beam_args
from headrace.jobs.display import LOG_EVERY_S, print_summary, progress_text
from headrace.jobs.errors import UsageError
from headrace.jobs.logs import print_line
from headrace.jobs.options import Parser
from headrace.pipelines import GenerateConfig, Progress
from headrace.pipelines.chain import run_chain
from headrace.pipelines.recipe import Recipe, read_recipe

logger = logging.getLogger(__name__)

DESCRIPTION = """\
Runs the stages of a recipe in one pipeline: recordings to transcripts to prompts to texts, say. A part of one
stage goes on into the next as soon as it is committed; the same command goes on where a chain was broken off.

  output: talks
  stages:
    - name: transcripts
      job: transcribe
      inputs: recordings/*.wav
      model: demo:whisper-tiny.en
    - name: summaries
      job: generate
      model: demo:smollm2-135m
      template: "Summarise in one sentence: {text}"
      chat: true

A stage has the options of its job, with underscores. Its rows are those of the stage before, or of
`rows_of: NAME`."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="headrace chain",
        description=DESCRIPTION,
        epilog="Every other option is one of Apache Beam's.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file")
    add_beam_options(parser, argv)
    parsed = parser.parse_intermixed_args(list(argv))
    beam_args = tuple(getattr(parsed, "beam_args", ()))
    check_beam_args(beam_args)
    recipe = _read(parsed.recipe)
    summaries = run_chain(recipe, beam_args, StageProgress(recipe))
    for name, summary in summaries.items():
        print_line(f"{name}:")
        print_summary(summary)
    strict = {stage.name for stage in recipe.stages if stage.config.fail_on_row_errors}
    return 1 if any(summary.rows_failed and name in strict for name, summary in summaries.items()) else 0


class StageProgress:
    """Logs the progress of each stage from time to time."""

    def __init__(self, recipe: Recipe) -> None:
        self._units = {
            stage.name: "tokens" if isinstance(stage.config, GenerateConfig) else "audio seconds"
            for stage in recipe.stages
        }
        self._logged_at = dict.fromkeys(self._units, -LOG_EVERY_S)

    def __call__(self, name: str, progress: Progress) -> None:
        if time.monotonic() - self._logged_at[name] >= LOG_EVERY_S:
            self._logged_at[name] = time.monotonic()
            logger.info("%s: %s", name, progress_text(progress, self._units[name]))


def _read(path: str) -> Recipe:
    try:
        return read_recipe(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the recipe {path}: {error}") from error
