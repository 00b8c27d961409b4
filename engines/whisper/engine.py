"""The Whisper engine's public face."""

import dataclasses
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, cast

from headrace.audio import AudioError, AudioSource, VadError
from headrace.engines.checkpoints import Checkpoint, open_checkpoint
from headrace.engines.compilation import enable_compilation_cache
from headrace.engines.driver import Driver
from headrace.engines.errors import EngineError, RequestError, RowError
from headrace.engines.whisper.config import ReturnTimestamps, Stride, TranscribeOptions, WhisperConfig
from headrace.engines.whisper.core import WhisperCore, WindowedRequest
from headrace.engines.whisper.intake import Arrived, Intake
from headrace.engines.whisper.loading import load
from headrace.engines.whisper.results import Transcription

logger = logging.getLogger(__name__)

DEFAULT_CONFIG = WhisperConfig()
DEFAULT_OPTIONS = TranscribeOptions()


class WhisperEngine:
    """Transcribes recordings: many at a time, their windows side by side in one batch.

    `model` is a model spec or an open checkpoint. Threads may share an engine.

    Raises:
      ModelError: the model cannot be loaded.
      ConfigError: the config does not fit the model.
    """

    def __init__(self, model: str | Checkpoint, config: WhisperConfig = DEFAULT_CONFIG) -> None:
        enable_compilation_cache()
        started = time.monotonic()
        checkpoint = open_checkpoint(model) if isinstance(model, str) else model
        loaded = load(checkpoint, config)
        loaded_at = time.monotonic()
        self.config = config
        self.num_slots = loaded.decoding.num_slots
        self._runner = loaded.runner()
        self._core = WhisperCore(self._runner, loaded.tokenizer, config)
        self._times = {"load_s": loaded_at - started, "warmup_s": time.monotonic() - loaded_at}
        self._driver: Driver[WindowedRequest, Transcription] = Driver(self._core, name="whisper")
        self._driver.start()
        self._intake = Intake(loaded, self._driver, config)
        self._admission = threading.BoundedSemaphore(max(16, 4 * self.num_slots))
        self._numbers = count()

    def transcribe(
        self,
        audio_input: AudioSource | Sequence[AudioSource],
        chunk_length_s: float | None = None,
        stride_length_s: Stride = None,
        batch_size: int | None = None,
        language: str | None = None,
        task: str | None = None,
        return_timestamps: ReturnTimestamps = None,
        **options: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """{"text", "language", "chunks": [{"text", "timestamp": (start_s, end_s)}], ...} of a recording.

        A list gives a list, in its order; one that cannot be decoded has text "" and an "error" there.
        What is None is taken from the row (a mapping may have "language" and "task"), then the engine's
        config, then the checkpoint. `batch_size`: most recordings in flight; `options`: further fields of
        TranscribeOptions, such as mode="sequential".

        Raises:
          TypeError: there is no such option.
          ValueError: an option that is wrong or that the model cannot do.
          AudioError: the recording cannot be decoded (a single one only).
        """
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        given = TranscribeOptions(
            language=language,
            task=task,
            return_timestamps=return_timestamps,
            chunk_length_s=chunk_length_s,
            stride_length_s=stride_length_s,
            **options,
        )
        self._intake.resolve(given)
        if isinstance(audio_input, list | tuple):
            return [as_dict(result) for result in self._stream(audio_input, given, batch_size)]
        result = next(self._stream([cast(AudioSource, audio_input)], given, batch_size))
        if result.error is not None:
            raise AudioError(result.error.message, kind=result.error.kind)
        return as_dict(result)

    generate = transcribe

    def submit(
        self,
        audio: AudioSource,
        options: TranscribeOptions = DEFAULT_OPTIONS,
        *,
        request_id: str,
    ) -> "Future[Transcription]":
        """A future of the transcription; blocks while too many recordings are in flight.

        The row's own faults (audio that cannot be decoded, a language that the model lacks) come back as
        `Transcription.error`; the future raises EngineError alone.

        Raises:
          EngineError: the engine is closed or has failed.
        """
        self._admission.acquire()
        future: Future[Transcription] = Future()
        future.add_done_callback(lambda _: self._admission.release())
        submitted_at = time.monotonic()
        try:
            arrived = Arrived(audio=audio, options=options, request_id=request_id, submitted_at=submitted_at)
            prepared = self._intake.submit(arrived)
        except RuntimeError:
            self._admission.release()
            raise EngineError("the engine is closed: make a new one") from None
        prepared.add_done_callback(lambda prepared: self._follow(prepared, future, request_id, submitted_at))
        return future

    def metrics(self) -> dict[str, float]:
        """Counters that only grow, and the seconds that loading and compiling took."""
        return {**self._core.counters, **self._runner.counters, **self._times}

    def close(self) -> None:
        """Finishes what was submitted, then frees the engine's threads."""
        self._intake.close()
        self._driver.stop()

    def __enter__(self) -> "WhisperEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(
        self, sources: Sequence[AudioSource], options: TranscribeOptions, in_flight: int | None
    ) -> Iterator[Transcription]:
        """Transcriptions in the sources' order, some of them submitted ahead."""
        limit = in_flight or 2 * self.num_slots
        call = next(self._numbers)
        futures: list[Future[Transcription]] = []
        for index, source in enumerate(sources):
            if index >= limit:
                yield futures[index - limit].result()
            row = options.over(_row_options(source))
            futures.append(self.submit(source, row, request_id=f"call-{call}-{index}"))
        for future in futures[-limit:]:
            yield future.result()

    def _follow(
        self,
        prepared: "Future[Future[Transcription]]",
        future: "Future[Transcription]",
        request_id: str,
        submitted_at: float,
    ) -> None:
        """Passes the outcome of the audio thread, then that of the driver, on to the caller's future."""

        def settle(done: "Future[Transcription]") -> None:
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            elif isinstance(error, EngineError):
                future.set_exception(error)
            else:
                future.set_result(
                    Transcription(
                        request_id=request_id,
                        error=_row_error(error),
                        latency_s=time.monotonic() - submitted_at,
                    )
                )

        if prepared.exception() is None:
            prepared.result().add_done_callback(settle)
        else:
            settle(cast("Future[Transcription]", prepared))


def as_dict(result: Transcription) -> dict[str, Any]:
    """A transcription in the form that speech pipelines return: "text", "language", "chunks" and more."""
    return {
        "text": result.text,
        "language": result.language,
        "language_probability": result.language_probability,
        "duration_s": result.duration_s,
        "chunks": [
            {"text": segment.text, "timestamp": (segment.start_s, segment.end_s)}
            for segment in result.segments
        ],
        "segments": [dataclasses.asdict(segment) for segment in result.segments],
        "quality_flags": list(result.quality_flags),
        "error": None if result.error is None else result.error.message,
    }


def _row_options(source: AudioSource) -> TranscribeOptions:
    """Language, task and prompt that a mapping row carries beside its audio."""
    if not isinstance(source, Mapping):
        return TranscribeOptions()
    return TranscribeOptions(
        language=source.get("language"), task=source.get("task"), initial_prompt=source.get("prompt")
    )


def _row_error(error: BaseException) -> RowError:
    """The error that a row carries; another's fault is logged with its trace."""
    if isinstance(error, AudioError | RequestError):
        return RowError.of(error)
    if isinstance(error, VadError):
        return RowError("options", str(error))
    logger.error("a recording could not be prepared", exc_info=error)
    return RowError("internal", f"{type(error).__name__} while the audio was prepared: this is our fault")
