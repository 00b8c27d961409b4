"""Programs on disk: read without a trace, by what they were made from, and only where they can be trusted."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from headrace.engines.compilation_config import CompilationConfig
from headrace.engines.program_store import ProgramStore, open_program_store
from headrace.engines.programs import ProgramKey, Programs

KEY = ProgramKey("add", 8)
ARGUMENTS = {"first": np.arange(8, dtype=np.int32), "second": np.ones(8, np.int32)}


@pytest.fixture(autouse=True)
def _without_the_cache_of_jax():
    """Where it is on, what it holds would be read instead of being compiled."""
    was_on = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", was_on)
    compilation_cache.reset_cache()


def start(directory: Path, model: str = "tiny", arguments=ARGUMENTS) -> tuple[int, int]:
    """How many programs a new engine compiles and how many it reads, once the one it needs has run."""

    @jax.jit
    def add(first, second):
        return {"sum": first + second}

    programs = Programs(
        CompilationConfig(),
        [KEY],
        lambda key, given: add.lower(**given),
        lambda key: arguments,
        ProgramStore(directory, {"model": model}),
    )
    total = programs.get(KEY, arguments)(**arguments)["sum"]
    assert total.tolist() == (arguments["first"] + arguments["second"]).tolist()
    return programs.num_compiles, programs.num_loads


def test_the_second_start_reads_what_the_first_compiled(tmp_path):
    assert start(tmp_path / "store") == (1, 0)
    assert start(tmp_path / "store") == (0, 1)
    (file,) = (tmp_path / "store").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


TWO_ENGINES = """
import sys
from pathlib import Path

import jax
import numpy as np

from headrace.engines.program_store import ProgramStore


def multiply(first, second):
    return first * second


def keep(directory, model):
    traced = jax.jit(multiply).lower(np.arange(8.0), np.arange(8.0))
    ProgramStore(Path(directory), {"model": model}).get("multiply", (), traced.compile)


keep(sys.argv[1], "first")
jax.clear_caches()
keep(sys.argv[2], "first")
keep(sys.argv[2], "second")
"""
"""A program that is compiled, one that JAX reads from its own cache, and the same for a second engine."""


def test_what_jax_has_read_from_its_own_cache_is_not_kept(tmp_path):
    fresh, read = tmp_path / "fresh", tmp_path / "read"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    settings = cache | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", TWO_ENGINES, str(fresh), str(read)]
    subprocess.run(command, env=os.environ | settings, check=True)
    assert len(list(fresh.iterdir())) == 1
    assert not read.exists()


def test_another_model_or_other_shapes_are_another_program(tmp_path):
    start(tmp_path)
    assert start(tmp_path, model="small") == (1, 0)
    longer = {name: np.concatenate([each, each]) for name, each in ARGUMENTS.items()}
    assert start(tmp_path, arguments=longer) == (1, 0)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("length", [0, 10, 40, -1])
def test_a_damaged_program_is_compiled_again(tmp_path, caplog, length):
    start(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:length])
    assert start(tmp_path) == (1, 0)
    assert "damaged" in caplog.text
    assert start(tmp_path) == (0, 1)


def test_a_program_that_others_may_write_is_not_run(tmp_path, caplog):
    start(tmp_path)
    (file,) = tmp_path.iterdir()
    file.chmod(0o666)
    assert start(tmp_path) == (1, 0)
    assert "others may write" in caplog.text


def test_a_directory_that_cannot_be_made_costs_a_compile_and_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert start(tmp_path / "file" / "store") == (1, 0)
    assert "could not be kept" in caplog.text


def refuse(*_: object) -> None:
    raise PermissionError("not yours")


def test_a_store_that_is_only_read_is_read(tmp_path, monkeypatch):
    start(tmp_path)
    monkeypatch.setattr(os, "utime", refuse)
    assert start(tmp_path) == (0, 1)


def test_a_program_that_cannot_be_put_in_its_place_leaves_nothing_behind(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "replace", refuse)
    assert start(tmp_path) == (1, 0)
    assert "could not be kept" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_the_programs_used_longest_ago_make_room(tmp_path, monkeypatch):
    for model in ("first", "second"):
        start(tmp_path, model)
    first, second = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    os.utime(second, (1, 1))
    monkeypatch.setattr("headrace.engines.program_store.MAX_BYTES", int(2.5 * first.stat().st_size))
    start(tmp_path, "third")
    assert first.exists()
    assert not second.exists()


def test_the_cache_can_be_turned_off_or_put_elsewhere(tmp_path, monkeypatch):
    assert open_program_store(None, {}) is None
    assert open_program_store("none", {}) is None
    store = open_program_store(str(tmp_path), {})
    assert store is not None
    assert store.directory == tmp_path
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    store = open_program_store("auto", {})
    assert store is not None
    assert store.directory == tmp_path / "programs"
    monkeypatch.setenv("HEADRACE_XLA_CACHE", "0")
    assert open_program_store("auto", {}) is None
