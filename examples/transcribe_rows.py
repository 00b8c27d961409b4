"""Transcribes recordings that a pipeline's rows name or hold.

python examples/transcribe_rows.py RECORDING...
"""

import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from headrace.pipelines import FailedRow, Transcribe, TranscribedRow


def show_transcript(transcript: TranscribedRow) -> None:
    print(f"{transcript.row['audio']}: {transcript.text}")


def show_error(failed: FailedRow) -> None:
    print(f"{failed.row['audio']} failed: {failed.message}")


def main(paths: list[str]) -> None:
    # On a runner with accelerators: Transcribe(...).with_resource_hints(accelerator="type:nvidia-l4;count:1")
    transcribe = Transcribe("demo:whisper-tiny.en", batch_size=8)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        outcome = pipeline | beam.Create([{"audio": path} for path in paths]) | transcribe
        _ = outcome.results | "Transcripts" >> beam.Map(show_transcript)
        _ = outcome.errors | "Errors" >> beam.Map(show_error)


if __name__ == "__main__":
    main(sys.argv[1:])
