"""Compiled programs on disk, found again by what they were made from: nothing is traced to look for one."""

import functools
import hashlib
import importlib.util
import logging
import os
import pickle
import platform
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from headrace.engines.cache import cache_home
from headrace.engines.compilation_config import AUTO

logger = logging.getLogger(__name__)

Signature = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of each argument that a dispatch brings along."""

Device = Any
"""An entry of `jax.devices()`, whose class JAX does not name."""

MAX_BYTES = 2 << 30
"""Size of a store; the programs that were used longest ago make room for new ones."""

_SUFFIX = ".program"
_UNWRITABLE = (OSError, ValueError, TypeError, RuntimeError, pickle.PickleError)
"""What may go wrong where a program is written: JAX cannot write every kind of program."""
_UNREADABLE = (*_UNWRITABLE, AttributeError, EOFError, ImportError, LookupError)
_TRACED_PACKAGES = ("headrace.audio", "headrace.engines")
_JAX_CACHE_SETTINGS = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
    "jax_default_prng_impl",
    "jax_debug_nans",
)
"""Settings of JAX that change what a trace comes to."""


def open_program_store(cache_dir: str | None, made_from: Mapping[str, str]) -> "ProgramStore | None":
    """The store in a directory, or in the cache's root where it is `auto`; None where it is None or `none`.

    HEADRACE_XLA_CACHE=0 turns `auto` off. JAX's own cache looks for a program by its trace, and the traces
    take most of a warm start: this one looks for what a trace is made from.
    """
    if cache_dir is None or cache_dir == "none":
        return None
    if cache_dir == AUTO:
        if os.environ.get("HEADRACE_XLA_CACHE", "1") == "0":
            return None
        cache_dir = str(cache_home() / "programs")
    return ProgramStore(Path(cache_dir), made_from)


class ProgramStore:
    """The compiled programs of one engine in a directory.

    A file holds machine code, which runs in this process: only a file is read that belongs to this user or
    to root and that nobody else may write, and whose checksum is right.
    """

    def __init__(self, directory: Path, made_from: Mapping[str, str]) -> None:
        """`made_from` says by parts all that a program depends on, beside its name and its arguments."""
        self.directory = directory
        self.made_from = {**machine_parts(), **made_from}
        self._base = _digest(f"{name}: {text}" for name, text in sorted(self.made_from.items()))

    def get(
        self,
        name: str,
        signature: Signature,
        compile_: Callable[[], jax.stages.Compiled],
        devices: Sequence[Device] | None = None,
    ) -> tuple[jax.stages.Compiled, bool]:
        """The program of this name for such arguments, and whether it was compiled for that, and so kept.

        It runs on `devices`, on JAX's default device where they are None.
        """
        program = self._load(self._path(name, signature), devices or jax.devices()[:1])
        if program is not None:
            return program, False
        before = _jax_cache.seen()
        program = compile_()
        if not _jax_cache.may_have_given(before):  # what JAX has read from it cannot be written whole
            self._save(self._path(name, signature), program)
        return program, True

    def _load(self, path: Path, devices: Sequence[Device]) -> jax.stages.Compiled | None:
        try:
            if not _is_trusted(path):
                logger.warning("a compiled program that others may write is not used: %s", path)
                return None
            checksum, payload = _split(path.read_bytes())
            if hashlib.sha256(payload).digest() != checksum:
                logger.warning("a damaged compiled program is compiled again: %s", path)
                return None
            program = serialize_executable.deserialize_and_load(
                *pickle.loads(payload), execution_devices=devices
            )
            with suppress(OSError):  # of a store that is only read, one in an image say
                os.utime(path)
        except FileNotFoundError:
            return None
        except _UNREADABLE as error:
            logger.warning("a compiled program cannot be read and is compiled again: %s: %s", path, error)
            return None
        return program

    def _save(self, path: Path, program: jax.stages.Compiled) -> None:
        try:
            payload = pickle.dumps(serialize_executable.serialize(program))
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, hashlib.sha256(payload).digest() + payload)
            _make_room(self.directory, MAX_BYTES)
        except _UNWRITABLE as error:
            logger.warning("a compiled program could not be kept: %s: %s", path, error)

    def _path(self, name: str, signature: Signature) -> Path:
        return self.directory / f"{_digest((self._base, name, repr(signature)))}{_SUFFIX}"


class _JaxCache(threading.local):
    """What this thread's compiles had of JAX's own cache."""

    hits = 0
    requests = 0

    def note(self, event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            self.hits += 1
        elif event == "/jax/compilation_cache/compile_requests_use_cache":
            self.requests += 1

    def seen(self) -> tuple[int, int]:
        return self.hits, self.requests

    def may_have_given(self, before: tuple[int, int]) -> bool:
        """Whether a compile since then was read from the cache.

        One that made no request took a program that this process has: it may have been read earlier.
        """
        is_on = all(getattr(jax.config, name) for name in _JAX_CACHE_SETTINGS)
        return self.hits > before[0] or (is_on and self.requests == before[1])


_jax_cache = _JaxCache()
jax.monitoring.register_event_listener(_jax_cache.note)


def program_signature(arguments: object) -> Signature:
    """Name, shape and dtype of every array in a tree of arguments."""
    leaves = jax.tree_util.tree_leaves_with_path(arguments)
    return tuple(
        (jax.tree_util.keystr(path, simple=True, separator="."), tuple(each.shape), str(each.dtype))
        for path, each in leaves
    )


@functools.cache
def machine_parts() -> dict[str, str]:
    """What compiled programs depend on beside the engine: versions, devices, processor, settings."""
    device = jax.devices()[0]
    return {
        "headrace": _source_digest(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind} {device.client.platform_version}",
        "device count": str(jax.device_count()),
        "processor": _processor(),
        "settings": repr(
            {name: getattr(jax.config, name) for name in _SETTINGS}
            | {name: os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
        ),
    }


def _source_digest() -> str:
    """Of the code that is traced, compiled kernels included."""
    parts = []
    for package in _TRACED_PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(path for kind in ("*.py", "*.so", "*.pyd") for path in folder.rglob(kind)):
            parts += [str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()]
    return _digest(parts)


def _processor() -> str:
    """The instruction sets that code was made for, and the number of threads that it was cut for."""
    names = platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_digest([names])[:16]}, {num_cpus} threads"


def _is_trusted(path: Path) -> bool:
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _write(path: Path, content: bytes) -> None:
    """Puts a whole file in its place, or leaves nothing behind."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


def _split(content: bytes) -> tuple[bytes, bytes]:
    size = hashlib.sha256().digest_size
    return content[:size], content[size:]


def _make_room(directory: Path, max_bytes: int) -> None:
    """Deletes the files that were used longest ago until the rest fits."""
    files = sorted(((path.stat(), path) for path in directory.glob(f"*{_SUFFIX}")), key=_last_use)
    total = sum(status.st_size for status, _ in files)
    for status, path in files:
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= status.st_size


def _last_use(entry: tuple[os.stat_result, Path]) -> float:
    return entry[0].st_mtime


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
