"""`headrace generate`: answers of a language model to prompts."""

from collections.abc import Sequence

from headrace.jobs.command import exit_code, read_arguments, run_job
from headrace.jobs.display import ProgressDisplay, print_summary
from headrace.pipelines import GenerateConfig

DESCRIPTION = (
    "Continue or answer every prompt of .parquet, .jsonl, .csv and .txt files with a language model."
)


def main(argv: Sequence[str]) -> int:
    config, beam_args = read_arguments(argv, "generate", GenerateConfig, DESCRIPTION)
    with ProgressDisplay("tokens") as show:
        summary = run_job(config, beam_args, show)
    print_summary(summary)
    return exit_code(config, summary)
