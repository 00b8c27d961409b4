"""The examples run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.slow


def run(name: str, *arguments: str) -> str:
    """What an example prints."""
    environment = {**os.environ, "XLA_FLAGS": ""}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def test_questions_are_answered_and_the_bad_one_is_told():
    out = run("generate_rows.py")
    assert "Paris" in out
    assert "3 failed: prompt_too_long" in out


def test_recordings_are_transcribed(shared_data: Path):
    out = run("transcribe_rows.py", str(shared_data / "speech/DeepSpeech__LDC93S1.wav"), "none.wav")
    assert "suit in greasy" in out
    assert "none.wav failed" in out


def test_run_inference_gives_a_prediction_for_each_example():
    out = run("run_inference.py")
    assert out.count("GeneratedRow(") == 2
    assert "Paris" in out
    assert "prompt_empty" in out
