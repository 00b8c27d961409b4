"""Beam pipelines that stream dataset shards through resident engines into committed Parquet parts.

What is named here is imported when it is first used: Beam and JAX take seconds, which a launcher that only
checks its options need not wait for.
"""

from typing import TYPE_CHECKING

from headrace.audio.lazy import lazily

if TYPE_CHECKING:
    from headrace.pipelines.calls import FailedRow, GeneratedRow, TranscribedRow
    from headrace.pipelines.config import GenerateConfig, TranscribeConfig
    from headrace.pipelines.errors import InputError, OutputError, RunError
    from headrace.pipelines.run import run_generate, run_transcribe
    from headrace.pipelines.summary import Progress, RunSummary
    from headrace.pipelines.supervisor import supervise
    from headrace.pipelines.transforms import Generate, Outcome, Transcribe

__all__ = [
    "FailedRow",
    "Generate",
    "GenerateConfig",
    "GeneratedRow",
    "InputError",
    "Outcome",
    "OutputError",
    "Progress",
    "RunError",
    "RunSummary",
    "Transcribe",
    "TranscribeConfig",
    "TranscribedRow",
    "run_generate",
    "run_transcribe",
    "supervise",
]

_HOMES = {
    "calls": ("FailedRow", "GeneratedRow", "TranscribedRow"),
    "config": ("GenerateConfig", "TranscribeConfig"),
    "errors": ("InputError", "OutputError", "RunError"),
    "run": ("run_generate", "run_transcribe"),
    "summary": ("Progress", "RunSummary"),
    "supervisor": ("supervise",),
    "transforms": ("Generate", "Outcome", "Transcribe"),
}
__getattr__ = lazily(__name__, _HOMES)
