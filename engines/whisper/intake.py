"""Decodes recordings in threads of its own and feeds them to the engine, window by window."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from headrace.audio import (
    SAMPLE_RATE,
    AudioSource,
    Ending,
    PackedSpeech,
    Reading,
    SpeechPacker,
    Window,
    WindowStream,
    cut_at_pause,
    cut_nowhere,
    silero_judge,
    stream_audio,
)
from headrace.engines.driver import Driver
from headrace.engines.errors import EngineError, RequestError
from headrace.engines.whisper.channels import OnChannels
from headrace.engines.whisper.config import TranscribeOptions, WhisperConfig
from headrace.engines.whisper.core import WindowedRequest
from headrace.engines.whisper.feed import Account, AudioRoom, Clip, ClipFeed, SampleFeed, UnwantedError
from headrace.engines.whisper.loading import LoadedModel
from headrace.engines.whisper.options import ResolvedOptions, resolve
from headrace.engines.whisper.plans import ChunkedPlan, Chunking, Plan, Seeking, SequentialPlan
from headrace.engines.whisper.quality import is_digital_silence
from headrace.engines.whisper.results import Transcription

MAX_HELD = 960 * SAMPLE_RATE
"""Samples of all recordings that wait for the engine (61 MB) above which no further one is begun."""
LEAST_HELD = 120 * SAMPLE_RATE
"""Samples of one recording that are decoded whatever the others hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """A recording as it was submitted."""

    audio: AudioSource
    """Where it is."""
    options: TranscribeOptions
    """What the row asks for."""
    request_id: str
    """As submitted."""
    submitted_at: float
    """time.monotonic() of the submit."""
    on_channels: OnChannels | None = None
    """Told the number of channels once the first samples are decoded."""


class Intake:
    """Threads that decode recordings, some at a time, and hold a bounded number of seconds of them.

    A recording goes to the driver with its first windows; long ones are decoded while they are transcribed.
    """

    def __init__(
        self, loaded: LoadedModel, driver: Driver[WindowedRequest, Transcription], config: WhisperConfig
    ) -> None:
        self._driver = driver
        self._config = config
        self._defaults = loaded.defaults
        self._tokenizer = loaded.tokenizer
        self._dims = loaded.decoding.dims
        self._num_slots = loaded.decoding.num_slots
        self._room = AudioRoom(MAX_HELD)
        # Threads that wait for room hold no turn to decode: a long recording does not keep others out.
        self._turns = threading.Semaphore(config.decode_threads)
        num_threads = config.decode_threads + self._num_slots
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="headrace-audio")

    def submit(self, arrived: Arrived) -> "Future[Future[Transcription]]":
        """A future of the driver's future; it raises what is wrong with the recording or its options.

        Raises:
          RuntimeError: the intake is closed.
        """
        return self._pool.submit(self._decode, arrived)

    def resolve(self, options: TranscribeOptions) -> ResolvedOptions:
        """Options without gaps.

        Raises:
          ValueError: an option that is wrong or that the model cannot do.
        """
        return resolve(options.over(self._defaults), self._tokenizer.special)

    def close(self) -> None:
        """Decodes what was submitted, then ends the threads."""
        self._pool.shutdown(wait=True)

    def _decode(self, arrived: Arrived) -> "Future[Transcription]":
        try:
            options = self.resolve(arrived.options)
        except ValueError as error:
            raise RequestError(str(error), kind="options") from None
        self._room.wait()
        ahead = self._num_slots * self._dims.window_samples // 2  # rows end by eighths of the slots at most
        most = LEAST_HELD if options.mode == "sequential" else ahead
        account = Account(self._room, least=LEAST_HELD, most=max(most, LEAST_HELD))
        cutter, plan = self._windows(options, account)
        request = WindowedRequest(
            request_id=arrived.request_id,
            plan=plan,
            language=options.language,
            task=options.task,
            timestamps=options.timestamps,
            submitted_at=arrived.submitted_at,
        )
        delivery = _Delivery(self._driver, request, account)

        def deliver(samples: np.ndarray) -> None:
            cutter.add(samples)
            delivery.go_on(self._turns)

        try:
            with self._turns:
                reading = Reading(channel=options.channel, on_channels=arrived.on_channels)
                cutter.end(stream_audio(arrived.audio, deliver, options=reading))
            return delivery.finish()
        except UnwantedError:
            plan.close()
            return delivery.finish()
        except BaseException:
            delivery.give_up()
            raise

    def _windows(self, options: ResolvedOptions, account: Account) -> tuple["_Cutter", Plan]:
        """What turns samples into windows, and what hands the windows out."""
        max_previous = self._dims.max_tokens // 2 - 1
        always = self._tokenizer.previous(options.hotwords, max_previous)
        first = self._tokenizer.previous(options.initial_prompt, max_previous - len(always))
        if options.mode == "sequential":
            samples = SampleFeed(account)
            seeking = Seeking(
                special=self._tokenizer.special,
                window_samples=self._dims.window_samples,
                silence_dbfs=self._config.silence_dbfs,
                first_previous=first,
                always_previous=always,
                condition_on_previous=options.condition_on_previous_text,
                max_previous=max_previous,
            )
            return samples, SequentialPlan(samples, seeking)
        feed = ClipFeed(account)
        chunking = Chunking(
            special=self._tokenizer.special,
            silence_dbfs=self._config.silence_dbfs,
            previous=(*always, *first),
        )
        if options.vad:
            packer = SpeechPacker(silero_judge(), options.chunk_length_s)
            return _SpeechCutter(packer, feed), ChunkedPlan(feed, chunking)
        stride_s = options.stride_length_s
        find_cut = cut_at_pause if stride_s is None else cut_nowhere
        windows = WindowStream(options.chunk_length_s, stride_s, find_cut)
        return _ChunkCutter(windows, feed, self._config.silence_dbfs), ChunkedPlan(feed, chunking)


@runtime_checkable
class _Cutter(Protocol):
    def add(self, samples: np.ndarray) -> None: ...

    def end(self, ending: Ending) -> None: ...


class _ChunkCutter:
    """Windows that end in pauses or overlap, into a feed."""

    def __init__(self, windows: WindowStream, feed: ClipFeed, silence_dbfs: float) -> None:
        self._windows = windows
        self._feed = feed
        self._silence_dbfs = silence_dbfs

    def add(self, samples: np.ndarray) -> None:
        self._put(self._windows.add(samples), is_followed=True)

    def end(self, ending: Ending) -> None:
        self._put(self._windows.finish(), is_followed=False)
        self._feed.end(ending)

    def _put(self, cut: Iterable[tuple[Window, np.ndarray]], *, is_followed: bool) -> None:
        for window, waveform in cut:
            is_silent = is_digital_silence(waveform, self._silence_dbfs)
            is_part = window.start > 0 or is_followed
            self._feed.put(Clip(window, None if is_silent else waveform, is_part=is_part))


class _SpeechCutter:
    """Windows packed from speech, into a feed."""

    def __init__(self, packer: SpeechPacker, feed: ClipFeed) -> None:
        self._packer = packer
        self._feed = feed
        self._has_put = False

    def add(self, samples: np.ndarray) -> None:
        for packed in self._packer.add(samples):
            self._put(packed, is_part=True)

    def end(self, ending: Ending) -> None:
        last = list(self._packer.finish())
        for packed in last:
            self._put(packed, is_part=self._has_put or len(last) > 1)
        self._feed.end(ending, max(ending.duration_s - self._packer.kept_s, 0.0))

    def _put(self, packed: PackedSpeech, *, is_part: bool) -> None:
        window = Window(packed.pieces[0][0], packed.pieces[-1][1], 0, 0)
        self._feed.put(Clip(window, packed.waveform, packed.pieces, is_part))
        self._has_put = True


class _Delivery:
    """Hands a request to the driver once it has a window, and tells the driver of those that follow."""

    def __init__(
        self, driver: Driver[WindowedRequest, Transcription], request: WindowedRequest, account: Account
    ) -> None:
        self._driver = driver
        self._request = request
        self._account = account
        self._future: Future[Transcription] | None = None

    def go_on(self, turns: threading.Semaphore) -> None:
        """Tells of new windows and waits for room; the turn is free for others meanwhile.

        Raises:
          UnwantedError: the request has ended.
        """
        if self._future is not None:
            self._driver.wake()
        elif self._request.plan.is_ready():
            self._future = self._submit()
        if not self._is_wanted():
            raise UnwantedError
        if not self._account.has_room():
            turns.release()
            try:
                self._account.wait(self._is_wanted)
            finally:
                turns.acquire()

    def finish(self) -> "Future[Transcription]":
        """The driver's future, after the last window."""
        if self._future is None:
            self._future = self._submit()
        elif not self._future.done():
            self._driver.wake()
        return self._future

    def give_up(self) -> None:
        """Drops what was delivered."""
        if self._future is None:
            self._request.plan.close()
            return
        with suppress(EngineError):  # a driver that has failed has dropped it
            self._driver.abort(self._request.request_id)

    def _submit(self) -> "Future[Transcription]":
        future = self._driver.submit(self._request)
        future.add_done_callback(lambda _: self._request.plan.close())  # where the driver fails, too
        return future

    def _is_wanted(self) -> bool:
        return self._future is None or not self._future.done()
