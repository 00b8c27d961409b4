"""Answers each question of a pipeline's own rows; failed rows go their own way.

python examples/generate_rows.py [Beam options]
"""

import sys
from typing import NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from headrace.pipelines import FailedRow, Generate, GeneratedRow


class Question(NamedTuple):
    """One row; mappings and beam.Rows do as well."""

    key: int
    text: str


QUESTIONS = [
    Question(1, "What is the capital of France?"),
    Question(2, "Name three primary colours."),
    Question(3, "why " * 3000),
]


def show_answer(answer: GeneratedRow) -> None:
    print(f"{answer.row.key}: {answer.text.strip()!r} ({answer.completion_tokens} tokens)")


def show_error(failed: FailedRow) -> None:
    print(f"{failed.row.key} failed: {failed.kind}: {failed.message}")


def main(arguments: list[str]) -> None:
    generate = Generate(
        "demo:smollm2-135m", prompt_column="text", chat=True, max_tokens=24, max_model_len=512, max_num_seqs=8
    )
    with beam.Pipeline(options=PipelineOptions(arguments or ["--runner=FnApiRunner"])) as pipeline:
        outcome = pipeline | beam.Create(QUESTIONS) | generate
        _ = outcome.results | "Answers" >> beam.Map(show_answer)
        _ = outcome.errors | "Errors" >> beam.Map(show_error)


if __name__ == "__main__":
    main(sys.argv[1:])
