"""The engine that a worker process keeps: loaded once, shared by threads, closed when the last lets go."""

import logging
import threading
import weakref
from collections.abc import Callable

import jax
from apache_beam.utils.shared import Shared

from headrace.pipelines.duplicates import SharedOutputs
from headrace.pipelines.work import ServingEngine

logger = logging.getLogger(__name__)

# Beam's `Shared` keeps one object a tag: an engine that has died is left behind with its tag.
_generation = 0
_num_barren = 0
_MAX_BARREN = 3
_generation_lock = threading.Lock()


class Resident:
    """An engine, and what of its counters was reported already.

    Beam's `Shared` keeps only a weak reference: every DoFn must hold the resident itself.
    """

    def __init__(self, engine: ServingEngine) -> None:
        self.engine = engine
        self.device = describe_devices()
        self.generation = _generation
        self.has_served = False
        self._reported: dict[str, float] = {}
        self._is_new = True
        self._lock = threading.Lock()
        self._shared: dict[str, SharedOutputs] = {}
        # The engine's own thread keeps the engine alive, but nothing keeps the resident alive but DoFns.
        closing = weakref.finalize(self, engine.close)
        closing.atexit = False  # a process that ends need not wait for what is in flight

    def shared_outputs(self, run: str) -> SharedOutputs:
        """What the engine's outputs of a run are shared by, among rows of equal content."""
        with self._lock:
            return self._shared.setdefault(run, SharedOutputs())

    def take_loads(self) -> int:
        """1 for the first caller, 0 for the others: the loads of this process, to be added up."""
        with self._lock:
            loads, self._is_new = int(self._is_new), False
            return loads

    def take_growth(self) -> dict[str, float]:
        """What each of the engine's counters has gained since the last call, by whichever thread."""
        with self._lock:
            now = dict(self.engine.counters())
            growth = {name: value - self._reported.get(name, 0) for name, value in now.items()}
            self._reported = now
            return growth


def acquire_resident(shared: Shared, load: Callable[[], ServingEngine]) -> Resident:
    """The process's resident; the first caller loads it while the others wait."""
    return shared.acquire(lambda: Resident(load()), tag=f"headrace-{_generation}")


def retire(resident: Resident) -> bool:
    """Has the next caller of `acquire_resident` load another engine: this one has died.

    Whether that is worth it: not where several in a row died without having served a single row.
    """
    global _generation, _num_barren
    with _generation_lock:
        if resident.generation == _generation:
            _generation += 1
            _num_barren = 0 if resident.has_served else _num_barren + 1
            resident.engine.close()
        return _num_barren < _MAX_BARREN


def describe_devices() -> str:
    """Number and kind of the devices that JAX sees in this process."""
    devices = jax.devices()
    kind = devices[0].device_kind
    return f"{len(devices)} x {kind}"
