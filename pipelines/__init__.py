"""Beam pipelines that stream dataset shards through resident engines into committed Parquet parts."""

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

__all__ = [
    "GenerateConfig",
    "InputError",
    "OutputError",
    "Progress",
    "RunError",
    "RunSummary",
    "TranscribeConfig",
    "run_generate",
    "run_transcribe",
]
