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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from headrace.engines import native
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
_SHOWN_CHARS = 60
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


class ReadyPrograms(NamedTuple):
    """Compiled programs that came with a model."""

    directory: Path
    made_from: Mapping[str, str]
    """By parts, all that they depend on."""

    def fits(self, made_from: Mapping[str, str]) -> bool:
        """Whether an engine may run them; where it may not, a warning says which parts differ."""
        parts = sorted({*self.made_from, *made_from})
        different = [part for part in parts if self.made_from.get(part) != made_from.get(part)]
        if different:
            shown = ", ".join(_difference(self.made_from.get(part), part, made_from) for part in different)
            logger.warning("the programs in %s do not fit and are compiled again: %s", self.directory, shown)
        return not different


def open_program_store(
    cache_dir: str | None, made_from: Mapping[str, str], ready: ReadyPrograms | None = None
) -> "ProgramStore | None":
    """The store in a directory, or in the cache's root where it is `auto`; None where it is None or `none`.

    HEADRACE_XLA_CACHE=0 turns `auto` off. JAX's own cache looks for a program by its trace, and the traces
    take most of a warm start: this one looks for what a trace is made from. `ready` programs are read first
    where they fit.
    """
    made_from = {**machine_parts(), **made_from}
    first = ready.directory if ready is not None and ready.fits(made_from) else None
    directory = _find_directory(cache_dir)
    if directory is None and first is None:
        return None
    return ProgramStore(directory, made_from, first)


class ProgramStore:
    """The compiled programs of one engine in a directory.

    A file holds machine code, which runs in this process: only a file is read that belongs to this user or
    to root and that nobody else may write, and whose checksum is right.
    """

    def __init__(
        self, directory: Path | None, made_from: Mapping[str, str], first: Path | None = None
    ) -> None:
        """`made_from` says by parts all that a program depends on, beside its name and its arguments.

        The directory `first` is looked at before the other and left as it is; None in the place of the other
        keeps nothing.
        """
        self.directory = directory
        self.made_from = {**machine_parts(), **made_from}
        self._first = first
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
        for path in self._paths(name, signature):
            program = _load(path, devices or jax.devices()[:1])
            if program is not None:
                return program, False
        before = _jax_cache.seen()
        program = compile_()
        # What JAX has read from its own cache cannot be written whole.
        if self.directory is not None and not _jax_cache.may_have_given(before):
            self._save(self.directory, self._file_name(name, signature), program)
        return program, True

    def has(self, name: str, signature: Signature) -> bool:
        """Whether there is a file for the program."""
        return any(path.is_file() for path in self._paths(name, signature))

    def copy_to(self, other: "ProgramStore", name: str, signature: Signature) -> bool:
        """Whether the program is kept here, and so was copied to another store."""
        assert other.directory is not None
        for path in self._paths(name, signature):
            payload = _read(path)
            if payload is not None:
                other.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write(other.directory / path.name, _with_checksum(payload))
                return True
        return False

    def _save(self, directory: Path, file_name: str, program: jax.stages.Compiled) -> None:
        path = directory / file_name
        try:
            payload = pickle.dumps(serialize_executable.serialize(program))
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, _with_checksum(payload))
            _make_room(directory, MAX_BYTES)
        except _UNWRITABLE as error:
            logger.warning("a compiled program could not be kept: %s: %s", path, error)

    def _paths(self, name: str, signature: Signature) -> list[Path]:
        file_name = self._file_name(name, signature)
        return [each / file_name for each in (self._first, self.directory) if each is not None]

    def _file_name(self, name: str, signature: Signature) -> str:
        return f"{_digest((self._base, name, repr(signature)))}{_SUFFIX}"


@contextmanager
def without_jax_cache() -> Iterator[None]:
    """Compiles without JAX's own cache: what comes from there cannot be written whole."""
    was_on = bool(getattr(jax.config, _JAX_CACHE_SETTINGS[0]))
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", was_on)
        compilation_cache.reset_cache()


def _find_directory(cache_dir: str | None) -> Path | None:
    if cache_dir is None or cache_dir == "none":
        return None
    if cache_dir != AUTO:
        return Path(cache_dir)
    return None if os.environ.get("HEADRACE_XLA_CACHE", "1") == "0" else cache_home() / "programs"


def _difference(before: str | None, part: str, now: Mapping[str, str]) -> str:
    """A part, with both its values where they are short."""
    after = now.get(part)
    is_short = all(each is not None and len(each) <= _SHOWN_CHARS for each in (before, after))
    return f"{part} (theirs: {before}, here: {after})" if is_short else part


def _load(path: Path, devices: Sequence[Device]) -> jax.stages.Compiled | None:
    """The program in a file; None where there is none that may be run."""
    payload = _read(path)
    if payload is None:
        return None
    native.is_available()  # a program may call kernels, which XLA must know before it is read
    try:
        program = serialize_executable.deserialize_and_load(*pickle.loads(payload), execution_devices=devices)
    except _UNREADABLE as error:
        logger.warning("a compiled program cannot be read and is compiled again: %s: %s", path, error)
        return None
    with suppress(OSError):  # of a store that is only read, one in an image say
        os.utime(path)
    return program


def _read(path: Path) -> bytes | None:
    """The content of a file that can be trusted and is whole."""
    try:
        if not _is_trusted(path):
            logger.warning("a compiled program that others may write is not used: %s", path)
            return None
        checksum, payload = _split(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("a compiled program cannot be read and is compiled again: %s: %s", path, error)
        return None
    if hashlib.sha256(payload).digest() != checksum:
        logger.warning("a damaged compiled program is compiled again: %s", path)
        return None
    return payload


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


def _with_checksum(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest() + payload


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
