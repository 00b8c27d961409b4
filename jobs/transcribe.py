"""`headrace transcribe`: the text of recordings of speech."""

from collections.abc import Sequence

from headrace.jobs.command import exit_code, read_arguments, run_job
from headrace.jobs.display import ProgressDisplay, print_summary
from headrace.pipelines import TranscribeConfig

DESCRIPTION = (
    "Transcribe audio files, or the audio that .parquet and .jsonl tables name or hold, with Whisper."
)


def main(argv: Sequence[str]) -> int:
    config, beam_args = read_arguments(argv, "transcribe", TranscribeConfig, DESCRIPTION)
    with ProgressDisplay("audio seconds") as show:
        summary = run_job(config, beam_args, show)
    print_summary(summary)
    return exit_code(config, summary)
