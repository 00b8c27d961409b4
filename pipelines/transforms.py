"""PTransforms over single rows, for pipelines of one's own: results and errors as two collections."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import BoundedWindow
from apache_beam.utils.shared import Shared
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from headrace.engines import EngineError, RowError
from headrace.pipelines.beam_metrics import increase
from headrace.pipelines.calls import (
    EngineCall,
    FailedRow,
    GenerateCall,
    GeneratedRow,
    TranscribeCall,
    TranscribedRow,
)
from headrace.pipelines.resident import Resident, acquire_resident

_ERRORS = "errors"
# Requests in the engine's hands, for each of its slots: enough that a slot never waits for the next element.
_WINDOW_PER_SLOT = 3


class Outcome(NamedTuple):
    """What comes out of `Generate` and `Transcribe`: each row, or channel, is in one of the two."""

    results: PCollection
    errors: PCollection


class Generate(beam.PTransform):
    """Continues or answers the prompt of each row: `Outcome` of `GeneratedRow`s and `FailedRow`s.

    Rows are mappings, NamedTuples or `beam.Row`s, of any number of columns; what a result is made of comes
    back beside it. `options` are those of `GenerateConfig` that tell how a prompt is built and answered
    (`prompt_column`, `template`, `chat`, `max_tokens`, ...). `id_column` seeds the draws of a row; without
    it rows of equal content draw alike. Options and model are checked when the transform is made.

    Where a worker has an accelerator for it, say so with Beam's own `with_resource_hints`.

    Raises:
      InputError: an option that is wrong, or that has no meaning here.
      ModelError: the model cannot be used.
    """

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__()
        self._call = GenerateCall.of(model, options)

    def default_type_hints(self) -> None:
        """None: Beam has no hint for two collections; each of them has its own."""

    def expand(self, input_or_inputs: PCollection) -> Outcome:
        return _apply(input_or_inputs, self._call, GeneratedRow)


class Transcribe(beam.PTransform):
    """Transcribes the recording of each row: `Outcome` of `TranscribedRow`s and `FailedRow`s.

    Rows are mappings, NamedTuples or `beam.Row`s with a column of paths, addresses, bytes or Audio structs:
    `audio_column`, else the first of audio, path, file, audio_filepath, url. Relative paths are those of the
    worker's directory. `options` are those of `TranscribeConfig` that tell how to transcribe.

    Raises:
      InputError: an option that is wrong, or that has no meaning here.
      ModelError: the model cannot be used.
    """

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__()
        self._call = TranscribeCall.of(model, options)

    def default_type_hints(self) -> None:
        """None: Beam has no hint for two collections; each of them has its own."""

    def expand(self, input_or_inputs: PCollection) -> Outcome:
        return _apply(input_or_inputs, self._call, TranscribedRow)


def _apply(rows: PCollection, call: EngineCall, result_type: type) -> Outcome:
    run = beam.ParDo(RunRows(call, Shared())).with_output_types(result_type, errors=FailedRow)
    both: Any = rows | "Run" >> run.with_outputs(_ERRORS, main="results")
    return Outcome(both.results, both.errors)


class _Pending(NamedTuple):
    """A row in the engine, and where its result belongs in event time."""

    row: Any
    future: "Future[Any]"
    timestamp: Timestamp
    window: BoundedWindow


class RunRows(beam.DoFn):
    """Rows in, results and errors out; a bounded number of a bundle's rows are in the engine together."""

    _numbers = itertools.count()

    def __init__(self, call: EngineCall, shared: Shared) -> None:
        self._call = call
        self._shared = shared
        self._resident: Resident | None = None

    def start_bundle(self) -> None:
        self._finished: SimpleQueue[_Pending] = SimpleQueue()
        self._num_pending = 0

    def process(
        self,
        element: Any,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterable[Any]:
        if self._resident is None:
            self._resident = acquire_resident(self._shared, self._call.load)
        engine = self._resident.engine
        while self._num_pending >= max(2, _WINDOW_PER_SLOT * engine.num_slots):
            yield from self._collect()
        yield from self._submit(engine, element, timestamp, window)
        while self._num_pending and not self._finished.empty():
            yield from self._collect()

    def finish_bundle(self) -> Iterator[Any]:
        while self._num_pending:
            yield from self._collect()
        if self._resident is not None:
            increase("model_loads", self._resident.take_loads())
            for name, growth in self._resident.take_growth().items():
                increase(f"engine_{name}", growth)

    def teardown(self) -> None:
        self._resident = None

    def _submit(
        self, engine: Any, row: Any, timestamp: Timestamp, window: BoundedWindow
    ) -> Iterator[WindowedValue | TaggedOutput]:
        """Hands a row to the engine; comes back with its error where it cannot be."""
        request_id = f"row-{os.getpid()}-{next(self._numbers)}"
        submitted = self._call.submit(engine, row_values(row), request_id)
        if isinstance(submitted, RowError):
            yield _failed(_Pending(row, Future(), timestamp, window), submitted)
            return
        pending = _Pending(row, submitted, timestamp, window)
        self._num_pending += 1
        finished = self._finished  # the next bundle has another
        submitted.add_done_callback(lambda _: finished.put(pending))

    def _collect(self) -> Iterator[WindowedValue | TaggedOutput]:
        """What came of the row that finished first."""
        pending = self._finished.get()
        self._num_pending -= 1
        error = pending.future.exception()
        if isinstance(error, EngineError):
            raise error
        if error is not None:
            yield _failed(pending, RowError("unexpected", f"{type(error).__name__}: {error}"))
            return
        for result in self._call.results(pending.row, pending.future.result()):
            if isinstance(result, RowError):
                yield _failed(pending, result)
            else:
                increase("rows", 1)
                yield WindowedValue(result, pending.timestamp, (pending.window,))


def row_values(row: Any) -> Mapping[str, Any]:
    """The columns of a row by name.

    Raises:
      TypeError: it is neither a mapping nor a NamedTuple nor a `beam.Row`.
    """
    if isinstance(row, Mapping):
        return row
    for name in ("_asdict", "as_dict"):
        if hasattr(row, name):
            return getattr(row, name)()
    raise TypeError(f"a row is {type(row).__name__}: a mapping, a NamedTuple or a beam.Row is wanted")


def _failed(pending: _Pending, error: RowError) -> TaggedOutput:
    increase("rows", 1)
    increase("rows_failed", 1)
    increase(f"errors_{error.kind}", 1)
    failed = FailedRow(pending.row, error.kind, error.message)
    return TaggedOutput(_ERRORS, WindowedValue(failed, pending.timestamp, (pending.window,)))
