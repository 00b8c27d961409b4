"""Beam pipelines that stream dataset shards through resident engines into committed Parquet parts."""

from headrace.pipelines.calls import FailedRow, GeneratedRow, TranscribedRow
from headrace.pipelines.config import (
    GenerateConfig,
    InputError,
    OutputError,
    Progress,
    RunError,
    RunSummary,
    TranscribeConfig,
)
from headrace.pipelines.run import run_generate, run_transcribe
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
]
