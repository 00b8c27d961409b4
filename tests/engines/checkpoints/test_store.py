"""Cache entries: whole or not at all."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engines.checkpoints.store import ensure_entry
from headrace.engines.errors import ModelError


def fill(files: Path) -> None:
    (files / "deep").mkdir()
    (files / "a").write_bytes(b"first")
    (files / "deep" / "b").write_bytes(b"second")


def refuse(files: Path) -> None:
    raise AssertionError("the entry was there")


def test_entry_is_filled_once(tmp_path: Path):
    first = ensure_entry(tmp_path, "key", fill)
    assert (first.files / "deep" / "b").read_bytes() == b"second"
    assert ensure_entry(tmp_path, "key", refuse) == first


def test_fingerprint_is_of_names_and_contents(tmp_path: Path):
    def fill_otherwise(files: Path) -> None:
        fill(files)
        (files / "a").write_bytes(b"other")

    one = ensure_entry(tmp_path, "one", fill)
    assert ensure_entry(tmp_path, "same", fill).fingerprint == one.fingerprint
    assert ensure_entry(tmp_path, "other", fill_otherwise).fingerprint != one.fingerprint


def test_fill_that_fails_leaves_nothing(tmp_path: Path):
    def fail(files: Path) -> None:
        fill(files)
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        ensure_entry(tmp_path, "key", fail)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []


def test_entry_whose_file_was_cut_is_made_again(tmp_path: Path):
    entry = ensure_entry(tmp_path, "key", fill)
    (entry.files / "a").write_bytes(b"f")
    ensure_entry(tmp_path, "key", fill)
    assert (entry.files / "a").read_bytes() == b"first"


def test_entry_with_a_broken_manifest_is_made_again(tmp_path: Path):
    entry = ensure_entry(tmp_path, "key", fill)
    (entry.files.parent / "manifest.json").write_text("{")
    assert ensure_entry(tmp_path, "key", fill).fingerprint == entry.fingerprint


def test_a_killed_process_leaves_an_entry_that_the_next_one_makes(tmp_path: Path):
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from headrace.engines.checkpoints.store import ensure_entry\n"
        "def fill(files):\n"
        "    (files / 'a').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "ensure_entry(Path(sys.argv[1]), 'key', fill)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("*.partial-*"))
    entry = ensure_entry(tmp_path, "key", fill)
    assert (entry.files / "a").read_bytes() == b"first"
    assert not list(tmp_path.glob("*.partial-*"))


def test_processes_that_start_at_once_fill_an_entry_once(tmp_path: Path):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from headrace.engines.checkpoints.store import ensure_entry\n"
        "root = Path(sys.argv[1])\n"
        "def fill(files):\n"
        "    with (root.parent / 'fills').open('a') as log: log.write('x')\n"
        "    time.sleep(0.5); (files / 'a').write_bytes(b'first')\n"
        "print(ensure_entry(root, 'key', fill).fingerprint)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = {process.communicate(timeout=60)[0] for process in running}
    assert len(printed) == 1
    assert printed.pop().strip()
    assert (tmp_path / "fills").read_text() == "x"


def test_manifest_lists_sizes_and_digests(tmp_path: Path):
    entry = ensure_entry(tmp_path, "key", fill)
    manifest = json.loads((entry.files.parent / "manifest.json").read_text())
    assert manifest["files"]["deep/b"]["size"] == 6
    assert len(manifest["files"]["a"]["sha256"]) == 64


def test_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ModelError, match="HEADRACE_CACHE"):
        ensure_entry(blocked / "models", "key", fill)


def test_keys_of_any_length_make_names_of_a_file_system(tmp_path: Path):
    entry = ensure_entry(tmp_path, "pypi:" + "x/" * 400, fill)
    assert len(entry.files.parent.name) < 100
    assert os.sep not in entry.files.parent.name
