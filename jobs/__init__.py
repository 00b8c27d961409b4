"""The command line, and the same two jobs as Python functions."""

from headrace.jobs.run import run_generate, run_transcribe

__all__ = ["run_generate", "run_transcribe"]
