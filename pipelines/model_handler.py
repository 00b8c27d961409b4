"""Model handlers for Beam's own RunInference, over both engines."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from headrace.engines import RowError
from headrace.pipelines.calls import EngineCall, FailedRow, GenerateCall, TranscribeCall
from headrace.pipelines.errors import InputError
from headrace.pipelines.transforms import row_values
from headrace.pipelines.work import ServingEngine

# RunInference waits for the slowest row of each batch: many rows a batch keep the engine's slots filled.
_BATCH_SIZE = 256


class EngineModelHandler(ModelHandler[Any, PredictionResult, ServingEngine]):
    """What both handlers share: a batch is in the engine at once, and a bad row does not fail its batch."""

    def __init__(self, call: EngineCall, column: str, *, batch_size: int, resource_hints: Mapping[str, Any]):
        super().__init__(min_batch_size=batch_size, max_batch_size=batch_size)
        self._call = call
        self._column = column
        self._resource_hints = dict(resource_hints)

    def load_model(self) -> ServingEngine:
        return self._call.load()

    def run_inference(
        self, batch: Sequence[Any], model: ServingEngine, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """A PredictionResult for each example, whose `inference` is a result row or a `FailedRow`."""
        submitted = [self._submit(model, example, f"{id(batch)}-{n}") for n, example in enumerate(batch)]
        for example, future in zip(batch, submitted, strict=True):
            outcome = future if isinstance(future, RowError) else self._outcome(example, future)
            if isinstance(outcome, RowError):
                outcome = FailedRow(example, outcome.kind, outcome.message)
            yield PredictionResult(example, outcome)

    def _outcome(self, example: Any, future: "Future[Any]") -> Any:
        (outcome,) = self._call.results(example, future.result())
        return outcome

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Refuses arguments of a call: they are the handler's own.

        Raises:
          ValueError: there are some.
        """
        if inference_args:
            raise ValueError(f"inference_args {sorted(inference_args)}: give them to the handler instead")

    def get_metrics_namespace(self) -> str:
        return "headrace"

    def get_resource_hints(self) -> dict[str, Any]:
        return self._resource_hints

    def share_model_across_processes(self) -> bool:
        return False

    def _submit(self, engine: ServingEngine, example: Any, request_id: str) -> "Future[Any] | RowError":
        plain = isinstance(example, str | bytes)
        values = {self._column: example} if plain else row_values(example)
        return self._call.submit(engine, values, request_id)


class GenerateModelHandler(EngineModelHandler):
    """Serves RunInference with the text engine: `inference` is a `GeneratedRow` or a `FailedRow`.

    Examples are prompts, or rows as `Generate` takes them; `options` are those of `Generate`. Where rows are
    enough, `Generate` is the faster one: RunInference waits for the slowest row of each batch.
    """

    def __init__(
        self,
        model: str,
        *,
        batch_size: int = _BATCH_SIZE,
        resource_hints: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        call = GenerateCall.of(model, options)
        column = call.work.config.prompt_column or "prompt"
        super().__init__(call, column, batch_size=batch_size, resource_hints=resource_hints or {})


class TranscribeModelHandler(EngineModelHandler):
    """Serves RunInference with the Whisper engine: `inference` is a `TranscribedRow` or a `FailedRow`.

    Examples are paths, addresses or bytes of recordings, or rows as `Transcribe` takes them; `options` are
    those of `Transcribe`.
    """

    def __init__(
        self,
        model: str,
        *,
        batch_size: int = 32,
        resource_hints: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if options.get("channels") == "split":
            raise InputError(
                "channels split gives a row a channel, and RunInference one an example: take Transcribe"
            )
        call = TranscribeCall.of(model, options)
        column = call.work.config.audio_column or "audio"
        super().__init__(call, column, batch_size=batch_size, resource_hints=resource_hints or {})
