"""A Whisper engine starts from its artifact as it was, compiles nothing, and refuses what does not fit."""

from pathlib import Path

import numpy as np
import pytest

from headrace.engines import program_store
from headrace.engines.checkpoints.artifact import PROGRAMS, WEIGHTS
from headrace.engines.errors import ModelError
from headrace.engines.llm import LLM
from headrace.engines.whisper import WhisperConfig, WhisperEngine

NOISE = np.random.default_rng(0).normal(0, 0.1, 32_000).astype(np.float32)
WORDS = {"return_timestamps": "word", "language": "en"}


@pytest.fixture(scope="module")
def saved(random_whisper, tmp_path_factory) -> tuple[Path, dict]:
    """An artifact with int8 weights, and what the engine heard in some noise."""
    config = WhisperConfig(
        dtype="float32", quantization="int8", batch_size=4, max_length=20, temperatures=(0.0,)
    )
    directory = tmp_path_factory.mktemp("artifact") / "whisper"
    with WhisperEngine(random_whisper(num_mels=80), config) as engine:
        heard = engine.transcribe(NOISE, **WORDS)
        engine.save_artifact(directory)
    return directory, heard


def told_of_programs(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == program_store.__name__]


@pytest.mark.slow
def test_a_start_from_an_artifact_compiles_nothing_and_hears_the_same(saved, caplog):
    directory, heard = saved
    with WhisperEngine.load_artifact(directory) as engine:
        assert engine.config.quantization == "int8"
        assert engine.transcribe(NOISE, initial_prompt="Once", **WORDS)["error"] is None
        assert engine.transcribe(NOISE, **WORDS) == heard
        counts = engine.metrics()
    assert counts["compiles"] == 0
    assert counts["programs_read"] > 3
    assert told_of_programs(caplog) == []


@pytest.mark.slow
def test_another_version_is_one_warning_and_programs_are_compiled_again(saved, monkeypatch, caplog, tmp_path):
    directory, heard = saved
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    own = program_store.machine_parts()
    monkeypatch.setattr(program_store, "machine_parts", lambda: {**own, "jaxlib": "9.9.9"})
    with WhisperEngine(str(directory)) as engine:
        (message,) = told_of_programs(caplog)
        assert f"compiled again: jaxlib (theirs: {own['jaxlib']}, here: 9.9.9)" in message
        assert engine.transcribe(NOISE, **WORDS) == heard
        assert engine.metrics()["compiles"] > 3


@pytest.mark.slow
def test_an_artifact_that_does_not_fit_or_was_touched_is_refused(saved, tmp_path):
    directory, _ = saved
    with pytest.raises(ModelError, match=r"other options \(dtype float32, quantization int8\)"):
        WhisperEngine(str(directory), WhisperConfig(dtype="float32", batch_size=4, max_length=20))
    with pytest.raises(ModelError, match="artifact of a whisper model: it takes no prompts"):
        LLM(str(directory))
    touched = tmp_path / "touched"
    touched.mkdir()
    for path in directory.iterdir():
        if path.name != PROGRAMS:
            (touched / path.name).write_bytes(path.read_bytes())
    (touched / WEIGHTS).write_bytes((directory / WEIGHTS).read_bytes()[:-64])
    with pytest.raises(ModelError, match=rf"{WEIGHTS} of the artifact .* is cut short"):
        WhisperEngine(str(touched))
