"""The job that transcribes: recordings to requests of the engine, outputs to rows of the results."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.audio import AudioError
from headrace.engines import RowError
from headrace.engines.checkpoints import LocalModel, open_checkpoint, resolve_model
from headrace.engines.whisper import (
    ChannelTranscriptions,
    Segment,
    TranscribeOptions,
    Transcription,
    WhisperConfig,
    WhisperEngine,
    check_model,
)
from headrace.pipelines.audio_lengths import estimate_seconds
from headrace.pipelines.config import TranscribeConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.files import exists, file_size, is_http, is_local, join, parent, read_bytes
from headrace.pipelines.scans import TableRow, TableScan
from headrace.pipelines.schemas import transcribe_schema
from headrace.pipelines.segments import cut_segment
from headrace.pipelines.summary import Unit
from headrace.pipelines.tables import table_format
from headrace.pipelines.transcripts import subtitle_style, write_transcript
from headrace.pipelines.work import (
    ResultRow,
    Work,
    WorkRow,
    kept_values,
    require_columns,
    row_key,
    without_half_characters,
)

OFFSET = "offset"
DURATION = "duration"
AUDIO_COLUMNS = ("audio", "path", "file", "audio_filepath", "url")


@dataclass(frozen=True, kw_only=True)
class TranscribeWork:
    """Recordings, as files or in tables, one result each."""

    config: TranscribeConfig
    """What the run was told."""
    kept: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The input columns that are carried through, with their types."""

    job: ClassVar[str] = "transcribe"
    unit: ClassVar[Unit] = "audio seconds"
    sums: ClassVar[tuple[str, ...]] = ("duration_s", "num_tokens")
    times: ClassVar[tuple[str, ...]] = ("queue_s", "latency_s")

    @property
    def schema(self) -> pa.Schema:
        return transcribe_schema(self._further_columns, self.kept)

    @property
    def _further_columns(self) -> tuple[str, ...]:
        channel = ("channel",) if self.config.channels == "split" else ()
        may_translate = self.config.task == "both" or self.config.task_column is not None
        translation = ("translation", "translation_segments") if may_translate else ()
        return (*channel, *translation, *self.config.with_columns)

    @property
    def files_per_shard(self) -> int:
        return self.config.files_per_shard

    @property
    def typed_columns(self) -> tuple[str, ...]:
        if self.config.work_per_part is None:
            return ()
        return AUDIO_COLUMNS if self.config.audio_column is None else (self.config.audio_column,)

    def work_columns(self, scan: TableScan) -> tuple[str, ...]:
        _, duration = self._segment_columns
        if duration in scan.columns:
            return (duration,)
        audio = self.content_columns("the table", scan.columns)[0]
        return (audio,) if scan.types.get(audio) == pa.string() else ()

    def row_work(self, values: Mapping[str, Any], path: str) -> float:
        ((name, value),) = values.items()
        if name == self._segment_columns[1]:
            return _seconds(value)
        if not isinstance(value, str) or not is_local(value) or not is_local(path):
            return 0.0
        recording = join(parent(path), value)
        return estimate_seconds(recording, file_size(recording) if exists(recording) else 0)

    def file_work(self, path: str, size: int | None) -> float:
        return estimate_seconds(path, size)

    def with_kept(self, kept: pa.Schema) -> Work:
        return replace(self, kept=kept)

    def is_table(self, path: str) -> bool:
        return table_format(path) not in (None, "txt")

    def content_columns(self, source: str, columns: Sequence[str]) -> tuple[str, ...]:
        if self.config.audio_column is not None:
            wanted = (self.config.audio_column,)
        else:
            wanted = next(((name,) for name in AUDIO_COLUMNS if name in columns), ())
        if not wanted:
            there = ", ".join(columns) or "none"
            raise InputError(f"{source} has no column of audio: name one of {there} as the audio column")
        given = [each for each in (self.config.offset_column, self.config.duration_column) if each]
        wanted = tuple(dict.fromkeys((*wanted, *self._option_columns.values(), *given)))
        require_columns(wanted, source, columns)
        # Manifests in NeMo's form name stretches of recordings.
        offset, duration = self._segment_columns
        found = [name for name in (offset, duration) if offset in columns and name in columns]
        return tuple(dict.fromkeys((*wanted, *found)))

    @property
    def _segment_columns(self) -> tuple[str, str]:
        """Columns of where a row's stretch of a recording begins, and of how long it is."""
        return self.config.offset_column or OFFSET, self.config.duration_column or DURATION

    @property
    def _option_columns(self) -> dict[str, str]:
        """Options of a row by their names, and the columns that hold them."""
        config = self.config
        named = {
            "language": config.language_column,
            "task": config.task_column,
            "initial_prompt": config.initial_prompt_column,
        }
        return {option: column for option, column in named.items() if column is not None}

    def check(self) -> None:
        whisper_config(self.config)
        subtitle_style(self.config)

    def check_model(self, model: LocalModel) -> None:
        check_model(open_checkpoint(model), whisper_config(self.config))

    def load(self) -> WhisperEngine:
        model = resolve_model(self.config.model, revision=self.config.revision)
        return WhisperEngine(open_checkpoint(model), whisper_config(self.config))

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        key = row_key(self.config, source, row.row, row.values)
        if row.error is not None:
            return WorkRow(key=key, error=row.error)
        shown = kept_values(self.kept, transcribe_schema(self._further_columns), row.values)
        work_row = without_half_characters(WorkRow(key=key, shown=shown))
        if work_row.error is not None:
            return work_row
        try:
            options = row_options(row.values, self._option_columns)
        except ValueError as error:
            return replace(work_row, error=RowError("options", str(error)))
        work_row = replace(work_row, options=options)
        return _with_audio(work_row, lambda: self._stretch(row.values, content, parent(path)))

    def prepare_file(self, path: str, source: str) -> WorkRow:
        key = row_key(self.config, source, 0, {})
        shown = kept_values(self.kept, transcribe_schema(self._further_columns), {})
        return _with_audio(WorkRow(key=key, shown=shown), lambda: _at(path))

    def submit(
        self, engine: WhisperEngine, row: WorkRow
    ) -> "Future[Transcription] | Future[ChannelTranscriptions]":
        options = row.options or TranscribeOptions()
        if self.config.channels == "split":
            return engine.submit_channels(row.payload, options, request_id=row.request_id)
        return engine.submit(row.payload, options, request_id=row.request_id)

    def finish(self, row: WorkRow, output: Transcription | ChannelTranscriptions) -> ResultRow:
        if isinstance(output, Transcription):
            return self._finish_one(row, output)
        if output.error is not None:
            return self._failed(row, output.error, None)
        first, *further = [self._finish_one(row, each, at) for at, each in enumerate(output.channels)]
        return first._replace(further=tuple(further))

    def _finish_one(self, row: WorkRow, output: Transcription, channel: int | None = None) -> ResultRow:
        """The result of a recording, or of one of its channels, whose id says so."""
        if channel is not None:
            row = replace(row, key={**row.key, "id": f"{row.key['id']}#ch{channel}", "channel": channel})
        if output.error is not None:
            return self._failed(row, output.error, output)
        is_translated = output.translation is not None
        self._write_transcripts(row.request_id, output, "" if channel is None else f".ch{channel}")
        values = {
            **row.key,
            **row.shown,
            "text": output.text,
            "language": output.language,
            "language_probability": output.language_probability,
            "duration_s": output.duration_s,
            "segments": _segments(output.segments),
            "translation": output.translation,
            "translation_segments": _segments(output.translation_segments) if is_translated else None,
            "num_tokens": output.num_tokens,
            "vad_dropped_s": output.vad_dropped_s,
            "quality_flags": list(output.quality_flags),
            "error": None,
            "queue_s": output.queue_s,
            "latency_s": output.latency_s,
            "token_ids": [each.token_ids for each in output.segments],
        }
        return ResultRow(values, None, output.duration_s or 0.0)

    def _write_transcripts(self, name: str, output: Transcription, suffix: str) -> None:
        write_transcript(self.config, name, output.segments, suffix)
        if output.translation is not None:
            write_transcript(self.config, name, output.translation_segments, f"{suffix}.translation")

    def fail(self, row: WorkRow) -> ResultRow:
        assert row.error is not None, "the row has no error"
        return self._failed(row, row.error, None)

    def _stretch(
        self, values: Mapping[str, Any], content: Sequence[str], directory: str
    ) -> str | bytes | dict[str, Any]:
        """What the engine takes for a row: the recording, or the stretch of it that the row names."""
        audio = _audio(values.get(content[0]), content[0], directory)
        offset, duration = self._segment_columns
        if offset not in content or values.get(offset) is None:
            return audio
        length_s = values.get(duration) if duration in content else None
        for name, value in ((offset, values[offset]), (duration, length_s)):
            if not isinstance(value, int | float | None) or isinstance(value, bool):
                kind = type(value).__name__
                raise AudioError(f"column {name!r} is a {kind}: seconds are wanted", kind="segment")
        stretch = float(values[offset]), None if length_s is None else float(length_s)
        keeps_channels = self.config.channel is not None or self.config.channels == "split"
        return cut_segment(audio, stretch, channels=keeps_channels)

    def write_beside(self, output: str) -> None:
        """Nothing."""

    def _failed(self, row: WorkRow, error: RowError, output: Transcription | None) -> ResultRow:
        flags = list(output.quality_flags) if output else []
        return ResultRow({**row.key, **row.shown, "quality_flags": flags, "error": error.message}, error, 0.0)


def whisper_config(config: TranscribeConfig) -> WhisperConfig:
    """How the engine is set up; what the run was not told is left to the engine and the checkpoint."""
    return WhisperConfig(
        batch_size=config.batch_size,
        language=config.language,
        task=config.task,
        return_timestamps=config.return_timestamps,
        dtype=config.dtype,
        chunk_length_s=config.chunk_length_s,
        stride_length_s=config.stride_length_s,
        mode=config.mode,
        encoder_context=config.encoder_context,
        window_fill=config.window_fill,
        vad=config.vad == "on",
        initial_prompt=config.initial_prompt,
        hotwords=config.hotwords,
        condition_on_previous_text=config.condition_on_previous_text,
        channel=config.channel,
        languages=config.languages,
        deterministic=config.deterministic,
        quantization=config.quantization,
        beam_size=config.search.beam_size,
        patience=config.search.patience,
        best_of=config.search.best_of,
        length_penalty=config.search.length_penalty,
    )


def row_options(values: Mapping[str, Any], columns: Mapping[str, str]) -> TranscribeOptions:
    """What a row asks for in its own columns; empty ones ask for nothing.

    Raises:
      ValueError: a value that cannot be.
    """
    given = {option: values.get(column) for option, column in columns.items()}
    for option, value in given.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"column {columns[option]!r} is a {type(value).__name__}: text is wanted")
    return TranscribeOptions(**{option: value for option, value in given.items() if value})


def _with_audio(row: WorkRow, find: Callable[[], str | bytes | dict[str, Any]]) -> WorkRow:
    """The row with what the engine is given, or with the reason why there is nothing."""
    try:
        audio = find()
    except AudioError as error:
        return replace(row, error=RowError.of(error))
    size = len(audio) if isinstance(audio, bytes) else 0
    if isinstance(audio, dict):
        size = audio["array"].nbytes
    return replace(row, payload=audio, payload_bytes=size)


def _seconds(value: Any) -> float:
    """A length that a table tells; 0 where it tells none."""
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        return 0.0


def _audio(value: Any, column: str, directory: str) -> str | bytes:
    """What the engine takes for a table's value; relative paths are those of the table's directory."""
    if isinstance(value, Mapping):
        content, path = value.get("bytes"), value.get("path")
        value = content if content is not None else path
    if value is None or (isinstance(value, str) and not value):
        raise AudioError(
            f"column {column!r} has no value: a path, an address or bytes is wanted", kind="missing"
        )
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        kind = type(value).__name__
        raise AudioError(
            f"column {column!r} is a {kind}: a path, an address or bytes is wanted", kind="source"
        )
    path = value.removeprefix("file://")
    return _at(join(directory, path) if is_local(path) else path)


def _at(path: str) -> str | bytes:
    """A path or address that the engine opens itself, else the content of the file."""
    if is_local(path) or is_http(path):
        return path
    try:
        return read_bytes(path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise AudioError(f"cannot read {path}: {reason}", kind="fetch") from error


def _segments(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [_segment(each) for each in segments]


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "start_s": segment.start_s,
        "end_s": segment.end_s,
        "text": segment.text,
        "avg_logprob": segment.avg_logprob,
        "no_speech_prob": segment.no_speech_prob,
        "compression_ratio": segment.compression_ratio,
        "temperature": segment.temperature,
        "words": [word._asdict() for word in segment.words],
    }
