"""Compiled programs by bucket: made ahead in parallel, counted, and bounded in number."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from headrace.engines.compilation_config import CompilationConfig, compiler_options
from headrace.engines.errors import EngineError
from headrace.engines.program_store import (
    Device,
    ProgramStore,
    Signature,
    program_signature,
    without_jax_cache,
)

logger = logging.getLogger(__name__)


class ProgramKey(NamedTuple):
    """A program and the bucket that it is compiled for."""

    kind: str
    size: int
    variant: Hashable = ""
    """What it does beyond its plain form, as a value whose text follows the program's name."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.size}{self.variant}"


class Programs:
    """The compiled programs of one engine.

    `lower` traces a program for given arguments; `example` gives the arguments that a bucket foresees. A
    program is compiled by a worker, or by the thread that needs it first; what `store` holds is read there
    and neither traced nor compiled. `devices` are those that a program runs on; None: JAX's default device.
    """

    def __init__(
        self,
        config: CompilationConfig,
        plan: Iterable[ProgramKey],
        lower: Callable[[ProgramKey, Mapping[str, Any]], jax.stages.Lowered],
        example: Callable[[ProgramKey], Mapping[str, Any]],
        store: ProgramStore | None = None,
        devices: Callable[[ProgramKey], Sequence[Device] | None] = lambda key: None,
    ) -> None:
        self._config = config
        self._plan = tuple(plan)
        self._lower = lower
        self._example = example
        self._store = store
        self._devices = devices
        self._compiled: OrderedDict[tuple[ProgramKey, Signature], Future[jax.stages.Compiled]] = OrderedDict()
        self._signatures: dict[ProgramKey, Signature] = {}
        self._lock = threading.RLock()
        self._workers: ThreadPoolExecutor | None = None
        self._is_warm = False
        self.compile_s = 0.0
        self.num_compiles = 0
        self.num_loads = 0
        self.num_late_compiles = 0
        self.num_evictions = 0

    def plan(self, keys: Iterable[ProgramKey]) -> None:
        """Foresees these programs and no others."""
        with self._lock:
            self._plan = tuple(keys)
            self._is_warm = False
            self._note_warm()

    @property
    def planned(self) -> tuple[ProgramKey, ...]:
        """The programs that are foreseen."""
        return self._plan

    @property
    def is_warm(self) -> bool:
        """Whether every program of the plan has been compiled."""
        return self._is_warm

    @property
    def num_made(self) -> int:
        """Programs that were compiled or read so far."""
        return self.num_compiles + self.num_loads

    def get(self, key: ProgramKey, arguments: Mapping[str, Any]) -> jax.stages.Compiled:
        """The program for these arguments, compiled now where it is not there.

        Raises:
          EngineError: it would have to be compiled, the shapes are strict, and the plan has no such shape or
            is compiled already.
        """
        name = (key, program_signature(arguments))
        with self._lock:
            future = self._compiled.get(name)
            is_new = future is None
            if future is None:
                self._check_strict(key, name[1])
                if self._is_warm:
                    self.num_late_compiles += 1
                    logger.warning("a compile after warm-up: %s", key)
                future = self._reserve(name)
            self._compiled.move_to_end(name)
        if is_new:
            self._compile(key, arguments, future)
        return future.result()

    def is_ready(self, key: ProgramKey) -> bool:
        """Whether the program of a bucket can run now."""
        future = self._compiled.get((key, self._foreseen(key)))
        return future is not None and future.done()

    def expect(self, keys: Iterable[ProgramKey]) -> list[ProgramKey]:
        """Has the workers compile the programs of these buckets, in this order; those that are new."""
        new = []
        with self._lock:
            for key in keys:
                name = (key, self._foreseen(key))
                if name in self._compiled:
                    continue
                if self._workers is None:
                    self._workers = ThreadPoolExecutor(self._config.num_compile_workers, "headrace-compile")
                self._workers.submit(self._compile, key, self._example(key), self._reserve(name))
                new.append(key)
        return new

    def precompile(self, keys: Iterable[ProgramKey] | None = None) -> list[ProgramKey]:
        """Compiles the programs of these buckets, or of the whole plan, and returns those that were new."""
        wanted = self._plan if keys is None else tuple(keys)
        with self._lock:
            new = self.expect(wanted)
            futures = [self._compiled.get((key, self._foreseen(key))) for key in wanted]
        for future in futures:
            if future is not None:  # else it was dropped for another, more than max_programs were wanted
                future.result()
        return new

    def export(
        self,
        target: ProgramStore,
        keys: Iterable[ProgramKey],
        lower: Callable[[ProgramKey, Mapping[str, Any]], jax.stages.Lowered],
    ) -> None:
        """Puts programs into another store: a copy where this engine's has them, else compiled now.

        `lower` traces anew: a program that this process has may be one that cannot be written.

        Raises:
          EngineError: one could not be written; the log says why.
        """

        def put(key: ProgramKey) -> None:
            name, signature = str(key), self._foreseen(key)
            if self._store is not None and self._store.copy_to(target, name, signature):
                return
            lowered = lower(key, self._example(key))
            target.get(name, signature, lambda: lowered.compile(compiler_options(self._config)))
            if not target.has(name, signature):
                raise EngineError(f"the compiled program {key} could not be written to {target.directory}")

        with without_jax_cache(), ThreadPoolExecutor(self._config.num_compile_workers) as workers:
            list(workers.map(put, keys))

    def close(self) -> None:
        """Drops what waits to be compiled; what is being compiled is waited for."""
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)

    def _foreseen(self, key: ProgramKey) -> Signature:
        if key not in self._signatures:
            self._signatures[key] = program_signature(self._example(key))
        return self._signatures[key]

    def _reserve(self, name: tuple[ProgramKey, Signature]) -> "Future[jax.stages.Compiled]":
        future = self._compiled[name] = Future()
        for old, program in list(self._compiled.items()):
            if len(self._compiled) <= self._config.max_programs:
                break
            if program.done() and old != name:
                del self._compiled[old]
                self.num_evictions += 1
                logger.info("dropped a compiled program, more than max_programs: %s", old[0])
        return future

    def _compile(
        self, key: ProgramKey, arguments: Mapping[str, Any], future: "Future[jax.stages.Compiled]"
    ) -> None:
        started_s = time.monotonic()
        try:
            program, is_new = self._load_or_compile(key, arguments)
        except BaseException as error:
            future.set_exception(error)
            raise
        seconds = time.monotonic() - started_s
        with self._lock:
            self.num_compiles += is_new
            self.num_loads += not is_new
            self.compile_s += seconds
            count = self.num_made
            future.set_result(program)
            self._note_warm()
        done = "compiled" if is_new else "read"
        logger.info("%s %s: %.1f s (program %d of %d)", done, key, seconds, count, len(self._plan))

    def _load_or_compile(
        self, key: ProgramKey, arguments: Mapping[str, Any]
    ) -> tuple[jax.stages.Compiled, bool]:
        def compile_() -> jax.stages.Compiled:
            return self._lower(key, arguments).compile(compiler_options=compiler_options(self._config))

        if self._store is None:
            return compile_(), True
        return self._store.get(str(key), program_signature(arguments), compile_, self._devices(key))

    def _note_warm(self) -> None:
        names = {name[0] for name, each in self._compiled.items() if each.done()}
        self._is_warm = self._is_warm or names.issuperset(self._plan)

    def _check_strict(self, key: ProgramKey, signature: Signature) -> None:
        if not self._config.strict_shapes:
            return
        if key not in self._plan:
            sizes = ", ".join(f"{each.size}{each.variant}" for each in self._plan if each.kind == key.kind)
            raise EngineError(
                f"{key} was not foreseen: programs of {key.kind} are compiled for {sizes or 'nothing'}"
            )
        wanted = {name: f"{dtype}{list(shape)}" for name, shape, dtype in self._foreseen(key)}
        got = {name: f"{dtype}{list(shape)}" for name, shape, dtype in signature}
        for name in (*got, *wanted):
            if got.get(name) != wanted.get(name):
                raise EngineError(
                    f"the argument {name} of {key} is {got.get(name, 'not given')}, "
                    f"the program was foreseen for {wanted.get(name, 'none')}"
                )
        if self._is_warm:
            raise EngineError(f"{key} would be compiled after warm-up: raise max_programs")
