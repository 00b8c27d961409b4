"""Hub ids without a hub: a cached snapshot is used, else one clear line."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import sys
from pathlib import Path
from headrace.engines.checkpoints import resolve_model
from headrace.engines.errors import ModelError
try:
    model = resolve_model(sys.argv[1], revision=sys.argv[2] or None, cache_dir=Path(sys.argv[3]))
    print(model.format, model.revision, model.fingerprint, (model.path / "config.json").is_file())
except ModelError as error:
    print("refused:", error)
"""


@pytest.fixture
def resolve_in_a_process(tmp_path: Path):
    """The hub client reads its environment when it is imported, hence a process for each call."""
    repository = tmp_path / "hub" / "models--someone--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a": np.zeros(2, np.float32)}, snapshot / "model.safetensors")

    def run(spec: str, revision: str = "", **environment: str) -> str:
        command = [sys.executable, "-c", SCRIPT, spec, revision, str(tmp_path)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120, env=os.environ | environment
        )
        return done.stdout.strip()

    return run


def test_offline_uses_the_cached_snapshot_and_its_commit(resolve_in_a_process):
    assert resolve_in_a_process("someone/tiny", HF_HUB_OFFLINE="1") == f"huggingface {COMMIT} {COMMIT} True"


def test_unreachable_hub_uses_the_cached_snapshot(resolve_in_a_process):
    printed = resolve_in_a_process("someone/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert printed == f"huggingface {COMMIT} {COMMIT} True"


def test_unreachable_hub_and_no_snapshot_is_one_line(resolve_in_a_process):
    printed = resolve_in_a_process("someone/other", HF_ENDPOINT="http://127.0.0.1:9")
    assert printed.startswith(
        "refused: hub model 'someone/other' is not in the local cache and the hub cannot"
    )
    assert "\n" not in printed


def test_offline_names_the_revision_that_is_not_cached(resolve_in_a_process):
    printed = resolve_in_a_process("someone/tiny", "v9", HF_HUB_OFFLINE="1")
    assert printed.startswith("refused: hub model 'someone/tiny' at revision 'v9' is not in the local cache")
