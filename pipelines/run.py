"""The two jobs from end to end: checks, pipeline, commit, summary."""

from collections.abc import Callable, Sequence

from headrace.pipelines.config import GenerateConfig, Progress, RunSummary, TranscribeConfig


def run_generate(
    config: GenerateConfig,
    beam_args: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> RunSummary:
    """Summary of a run that wrote one result row for each prompt of the input to `config.output`.

    `on_progress` is called about once a second, from another thread.

    Raises:
      InputError: an option or the input is wrong; nothing was run.
      OutputError: the output directory belongs to another run or cannot be written; nothing was run.
      ModelError: the model cannot be used; nothing was run.
    """
    raise NotImplementedError


def run_transcribe(
    config: TranscribeConfig,
    beam_args: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> RunSummary:
    """Summary of a run that wrote one result row for each recording of the input to `config.output`.

    `on_progress` is called about once a second, from another thread.

    Raises:
      InputError: an option or the input is wrong; nothing was run.
      OutputError: the output directory belongs to another run or cannot be written; nothing was run.
      ModelError: the model cannot be used; nothing was run.
    """
    raise NotImplementedError
