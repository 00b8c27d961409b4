"""One row through an engine, outside of the two jobs: what PTransforms and model handlers have in common."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from headrace.engines import RequestError, RowError
from headrace.engines.checkpoints import resolve_model
from headrace.engines.config_fields import flat_fields, from_flat
from headrace.engines.llm import RequestOutput
from headrace.engines.sampling import derive_seed
from headrace.engines.whisper import ChannelTranscriptions, Segment, Transcription
from headrace.pipelines.config import GenerateConfig, RunConfig, TranscribeConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.fingerprint import digest
from headrace.pipelines.generate import GenerateWork, list_places, sampling_params
from headrace.pipelines.scans import TableRow
from headrace.pipelines.selection import INPUT_OPTIONS
from headrace.pipelines.transcribe import TranscribeWork
from headrace.pipelines.work import ServingEngine, WorkRow, as_text

# Options of a run over files.
_OF_RUNS = frozenset(
    {*INPUT_OPTIONS, "output", "keep_columns", "with_columns", "files_per_shard", "dedupe"}
    | {"rows_per_part", "work_per_part"}
    | {"fail_on_row_errors", "retry_errors", "overwrite", "ignore_mtime", "max_error_rate", "max_hours"}
    | {"row_timeout_s", "supervise", "prometheus_port"}
)
_HERE = "(rows of a pipeline)"

ConfigT = TypeVar("ConfigT", bound=RunConfig)
WorkT = TypeVar("WorkT", GenerateWork, TranscribeWork)


class GeneratedRow(NamedTuple):
    """An answer, beside the row that was asked; the further fields are the columns of the same names."""

    row: Any
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cumulative_logprob: float
    seed: int | None
    quality_flags: list[str]
    latency_s: float
    texts: list[str]
    logprobs: list[Any] | None
    prompt_logprobs: list[Any] | None


class TranscribedRow(NamedTuple):
    """A transcript, beside the row that held the recording."""

    row: Any
    text: str
    language: str | None
    duration_s: float
    segments: list[Segment]
    quality_flags: list[str]
    latency_s: float
    channel: int | None = None
    translation: str | None = None
    translation_segments: Sequence[Segment] = ()


class FailedRow(NamedTuple):
    """A row that failed: `kind` is a short machine word, `message` one line that a person can act on."""

    row: Any
    kind: str
    message: str


@runtime_checkable
class EngineCall(Protocol):
    """How rows of one pipeline go through one engine; pickled to every worker."""

    def load(self) -> ServingEngine: ...

    def submit(self, engine: Any, values: Mapping[str, Any], request_id: str) -> "Future[Any] | RowError":
        """A future of the engine's output, or why the row cannot be submitted."""
        ...

    def results(self, row: Any, output: Any) -> Sequence[Any]:
        """The results of `row`, each of them a RowError where it failed."""
        ...


@dataclass(frozen=True)
class GenerateCall:
    """Prompts through the text engine."""

    work: GenerateWork

    @classmethod
    def of(cls, model: str, options: Mapping[str, Any]) -> "GenerateCall":
        """Checks options and model; raises as `checked_work`."""
        return cls(checked_work(GenerateWork, GenerateConfig, model, options))

    def load(self) -> ServingEngine:
        return self.work.load()

    def submit(
        self, engine: Any, values: Mapping[str, Any], request_id: str
    ) -> "Future[RequestOutput] | RowError":
        prepared = _prepare(self.work, values)
        if prepared.error is not None:
            return prepared.error
        config = self.work.config
        params = sampling_params(config)
        if params.seed is None:
            seed = derive_seed(config.seed, _row_id(config.id_column, values))
            params = dataclasses.replace(params, seed=seed)
        chat = config.chat or config.system is not None
        return engine.submit(prepared.payload, params, request_id=request_id, chat=chat, system=config.system)

    def results(self, row: Any, output: RequestOutput) -> list[GeneratedRow | RowError]:
        if output.error is not None:
            return [output.error]
        completion = output.outputs[0]
        assert completion.finish_reason is not None, "the output still grows"
        answer = GeneratedRow(
            row=row,
            text=completion.text,
            finish_reason=completion.finish_reason or "stop",
            prompt_tokens=len(output.prompt_token_ids),
            completion_tokens=sum(len(each.token_ids) for each in output.outputs),
            cumulative_logprob=completion.cumulative_logprob,
            seed=completion.seed,
            quality_flags=list(output.quality_flags),
            latency_s=output.latency_s or 0.0,
            texts=[each.text for each in output.outputs],
            logprobs=list_places(completion.logprobs),
            prompt_logprobs=list_places(output.prompt_logprobs),
        )
        return [answer]


@dataclass(frozen=True)
class TranscribeCall:
    """Recordings through the Whisper engine."""

    work: TranscribeWork

    @classmethod
    def of(cls, model: str, options: Mapping[str, Any]) -> "TranscribeCall":
        """Checks options and model; raises as `checked_work`."""
        return cls(checked_work(TranscribeWork, TranscribeConfig, model, options))

    def load(self) -> ServingEngine:
        return self.work.load()

    def submit(
        self, engine: Any, values: Mapping[str, Any], request_id: str
    ) -> "Future[Transcription] | Future[ChannelTranscriptions] | RowError":
        prepared = _prepare(self.work, values)
        if prepared.error is not None:
            return prepared.error
        return self.work.submit(engine, replace(prepared, key={"source": "row", "row": request_id}))

    def results(
        self, row: Any, output: Transcription | ChannelTranscriptions
    ) -> list[TranscribedRow | RowError]:
        if isinstance(output, Transcription):
            return [_transcribed(row, output)]
        if output.error is not None:
            return [output.error]
        return [_transcribed(row, each, channel) for channel, each in enumerate(output.channels)]


def _transcribed(row: Any, output: Transcription, channel: int | None = None) -> TranscribedRow | RowError:
    if output.error is not None:
        where = "" if channel is None else f"channel {channel}: "
        return RowError(output.error.kind, where + output.error.message)
    return TranscribedRow(
        row=row,
        text=output.text,
        language=output.language,
        duration_s=output.duration_s or 0.0,
        segments=list(output.segments),
        quality_flags=list(output.quality_flags),
        latency_s=output.latency_s,
        channel=channel,
        translation=output.translation,
        translation_segments=list(output.translation_segments),
    )


def checked_work(
    work_class: Callable[..., WorkT], config_class: type[RunConfig], model: str, options: Mapping[str, Any]
) -> WorkT:
    """The job of rows of a pipeline, with options and model looked at.

    Raises:
      InputError: an option that is wrong, or that has no meaning for rows.
      ModelError: the model cannot be used.
    """
    work = work_class(config=row_config(config_class, model, options))
    try:
        work.check()
    except ValueError as error:
        raise InputError(str(error)) from error
    work.check_model(resolve_model(model, revision=work.config.revision))
    return work


def row_config(config_class: type[ConfigT], model: str, options: Mapping[str, Any]) -> ConfigT:
    """The configuration of a job whose rows come from a pipeline and whose results go on in it.

    Raises:
      InputError: an option that is wrong, unknown, or about the files of a run.
    """
    known = {each.field.name for each in flat_fields(config_class)}
    for name in options:
        if name not in known:
            raise InputError(f"there is no option {name}: see {config_class.__name__}")
        if name in _OF_RUNS:
            raise InputError(
                f"{name} is an option of runs over files: leave it out, rows come and go as they are"
            )
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return from_flat(config_class, {"inputs": (_HERE,), "output": _HERE, "model": model, **values})


def _prepare(work: GenerateWork | TranscribeWork, values: Mapping[str, Any]) -> WorkRow:
    """The row as the job would submit it."""
    try:
        content = work.content_columns("the row", list(values))
    except InputError as error:
        return WorkRow(key={}, error=RowError.of(RequestError(str(error), kind="missing_value")))
    return work.prepare(TableRow(0, values), "", "row", content)


def _row_id(column: str | None, values: Mapping[str, Any]) -> str:
    """What the draws of a row are seeded with: its id, or its content."""
    if column is not None and values.get(column) is not None:
        return as_text(values[column])
    return digest(json.loads(json.dumps(dict(values), default=str)))
