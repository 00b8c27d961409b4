"""The Whisper engine's public face."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

from headrace.audio import AudioError, AudioSource, VadError
from headrace.engines.allocator import limit_arenas, release_memory
from headrace.engines.checkpoints import Checkpoint, open_checkpoint
from headrace.engines.driver import Driver
from headrace.engines.errors import EngineError, ModelError, RequestError, RowError
from headrace.engines.whisper.artifacts import stored_config, write_artifact
from headrace.engines.whisper.channels import (
    ChannelGathering,
    Channels,
    ChannelTranscriptions,
    OnChannels,
    reread,
)
from headrace.engines.whisper.config import ReturnTimestamps, Stride, TranscribeOptions, WhisperConfig
from headrace.engines.whisper.core import WhisperCore, WindowedRequest
from headrace.engines.whisper.intake import Arrived, Intake
from headrace.engines.whisper.loading import load
from headrace.engines.whisper.results import Transcription

logger = logging.getLogger(__name__)

DEFAULT_OPTIONS = TranscribeOptions()

ResultT = TypeVar("ResultT", Transcription, ChannelTranscriptions)


class WhisperEngine:
    """Transcribes recordings: many at a time, their windows side by side in one batch.

    `model` is a model spec or an open checkpoint. Threads may share an engine. Without a config an artifact
    is set up as it was when it was saved, any other model by the defaults.

    Raises:
      ModelError: the model cannot be loaded.
      ConfigError: the config does not fit the model.
    """

    def __init__(self, model: str | Checkpoint, config: WhisperConfig | None = None) -> None:
        started = time.monotonic()
        limit_arenas()
        checkpoint = open_checkpoint(model) if isinstance(model, str) else model
        config = config or stored_config(checkpoint) or WhisperConfig()
        self._checkpoint = checkpoint
        loaded = load(checkpoint, config)
        loaded_at = time.monotonic()
        self.config = config
        self.num_slots = loaded.decoding.num_slots
        self._runner = loaded.runner()
        release_memory()
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
        channels: Channels = "mix",
        **options: Any,
    ) -> dict[str, Any] | list[dict[str, Any]] | list[list[dict[str, Any]]]:
        """{"text", "language", "chunks": [{"text", "timestamp": (start_s, end_s)}], ...} of a recording.

        A list gives a list, in its order; one that cannot be decoded has text "" and an "error" there.
        With channels="split" each recording gives a list in place of a dict, one a channel.
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
        if channels == "split":
            return self._transcribe_channels(audio_input, given, batch_size)
        if channels != "mix":
            raise ValueError(f"channels is {channels!r}: it must be 'mix' or 'split'")
        if isinstance(audio_input, list | tuple):
            return [as_dict(result) for result in self._stream(self.submit, audio_input, given, batch_size)]
        result = next(self._stream(self.submit, [cast(AudioSource, audio_input)], given, batch_size))
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
        arrived = Arrived(audio=audio, options=options, request_id=request_id, submitted_at=time.monotonic())
        self._admission.acquire()
        try:
            future = self._begin(arrived)
        except EngineError:
            self._admission.release()
            raise
        future.add_done_callback(lambda _: self._admission.release())
        return future

    def submit_channels(
        self,
        audio: AudioSource,
        options: TranscribeOptions = DEFAULT_OPTIONS,
        *,
        request_id: str,
    ) -> "Future[ChannelTranscriptions]":
        """As `submit`, with a transcription of each channel.

        Raises:
          EngineError: the engine is closed or has failed.
          ValueError: the options or the config name one channel.
        """
        if options.channel is not None or self.config.channel is not None:
            raise ValueError("channel is given and the channels are split: leave it out")
        submitted_at = time.monotonic()
        try:
            again = reread(audio)
        except AudioError as error:
            failed: Future[ChannelTranscriptions] = Future()
            failed.set_result(ChannelTranscriptions(request_id=request_id, error=RowError.of(error)))
            return failed

        def begin(channel: int, on_channels: OnChannels | None) -> "Future[Transcription]":
            return self._begin(
                Arrived(
                    audio=again,
                    options=dataclasses.replace(options, channel=channel),
                    request_id=f"{request_id}#ch{channel}",
                    submitted_at=submitted_at,
                    on_channels=on_channels,
                )
            )

        self._admission.acquire()
        gathering = ChannelGathering(begin, request_id)
        gathering.future.add_done_callback(lambda _: self._admission.release())
        gathering.start()
        return gathering.future

    def save_artifact(self, path: str | Path) -> None:
        """Writes weights, tokenizer, config and all programs to a new directory.

        `WhisperEngine(path)` starts from it without tracing or compiling, on a machine of the same kind.

        Raises:
          ConfigError: there is something at this place.
          EngineError: a program cannot be written.
        """
        write_artifact(Path(path), self._runner, self.config, self._checkpoint)

    @classmethod
    def load_artifact(cls, path: str | Path, config: WhisperConfig | None = None) -> "WhisperEngine":
        """The engine that `save_artifact` or `headrace compile` wrote, as it was set up then, or as told.

        Raises:
          ModelError: there is no artifact, it is damaged, or its weights are laid out for another machine.
        """
        checkpoint = open_checkpoint(str(path))
        if checkpoint.artifact is None:
            raise ModelError(f"{str(path)!r} is a model and no artifact: take WhisperEngine(...)")
        return cls(checkpoint, config)

    def metrics(self) -> dict[str, float]:
        """The counters: there are no ratios of them."""
        return self.counters()

    def counters(self) -> dict[str, float]:
        """Counters that only grow, and the seconds that loading and compiling took."""
        compiles = {
            "compiles": float(self._runner.num_compiles),
            "programs_read": float(self._runner.num_loads),
        }
        return {**self._core.counters, **self._runner.counters, **compiles, **self._times}

    def close(self) -> None:
        """Finishes what was submitted, then frees the engine's threads."""
        self._intake.close()
        self._driver.stop()
        self._runner.close()

    def __enter__(self) -> "WhisperEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, arrived: Arrived) -> "Future[Transcription]":
        """A future of the transcription, whatever is in flight."""
        future: Future[Transcription] = Future()
        try:
            prepared = self._intake.submit(arrived)
        except RuntimeError:
            raise EngineError("the engine is closed: make a new one") from None
        prepared.add_done_callback(lambda prepared: self._follow(prepared, future, arrived))
        return future

    def _transcribe_channels(
        self, audio_input: AudioSource | Sequence[AudioSource], given: TranscribeOptions, limit: int | None
    ) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        many = isinstance(audio_input, list | tuple)
        sources = audio_input if many else [cast(AudioSource, audio_input)]
        results = list(self._stream(self.submit_channels, sources, given, limit))
        if many:
            return [channel_dicts(result) for result in results]
        if results[0].error is not None:
            raise AudioError(results[0].error.message, kind=results[0].error.kind)
        return channel_dicts(results[0])

    def _stream(
        self,
        submit: "Callable[..., Future[ResultT]]",
        sources: Sequence[AudioSource],
        options: TranscribeOptions,
        in_flight: int | None,
    ) -> Iterator[ResultT]:
        """Results in the sources' order, some of the sources submitted ahead."""
        limit = in_flight or 2 * self.num_slots
        call = next(self._numbers)
        futures: list[Future[ResultT]] = []
        for index, source in enumerate(sources):
            if index >= limit:
                yield futures[index - limit].result()
            row = options.over(_row_options(source))
            futures.append(submit(source, row, request_id=f"call-{call}-{index}"))
        for future in futures[-limit:]:
            yield future.result()

    def _follow(
        self,
        prepared: "Future[Future[Transcription]]",
        future: "Future[Transcription]",
        arrived: Arrived,
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
                        request_id=arrived.request_id,
                        error=_row_error(error),
                        latency_s=time.monotonic() - arrived.submitted_at,
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
        **_translation(result),
        "quality_flags": list(result.quality_flags),
        "error": None if result.error is None else result.error.message,
    }


def _translation(result: Transcription) -> dict[str, Any]:
    if result.translation is None:
        return {}
    segments = [dataclasses.asdict(segment) for segment in result.translation_segments]
    return {"translation": result.translation, "translation_segments": segments}


def channel_dicts(result: ChannelTranscriptions) -> list[dict[str, Any]]:
    """A recording's channels as `as_dict` gives them, each with its "channel".

    One with "channel" None is there where the recording itself could not be decoded.
    """
    if result.error is not None:
        failed = Transcription(request_id=result.request_id, error=result.error)
        return [{"channel": None, **as_dict(failed)}]
    return [{"channel": channel, **as_dict(each)} for channel, each in enumerate(result.channels)]


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
