"""The channels of one recording, a request each, collected into one result."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from headrace.audio import AudioError, AudioSource, ReadableFile
from headrace.engines.errors import RowError
from headrace.engines.whisper.results import Transcription

Channels = Literal["mix", "split"]
OnChannels = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelTranscriptions:
    """The results of one recording's channels."""

    request_id: str
    """As submitted."""
    channels: tuple[Transcription, ...] = ()
    """One a channel, in their order; each may have an error of its own."""
    error: RowError | None = None
    """Why the recording failed before its channels could be told, else None."""

    @property
    def finished(self) -> bool:
        """True: a recording has one result, at its end."""
        return True


class ChannelGathering:
    """Begins a request a channel as soon as their number is heard, and completes `future` with all results.

    `begin` takes a channel and what is to be told their number. The future raises what a request raised.
    """

    def __init__(
        self, begin: "Callable[[int, OnChannels | None], Future[Transcription]]", request_id: str
    ) -> None:
        self.future: Future[ChannelTranscriptions] = Future()
        self._begin = begin
        self._request_id = request_id
        self._lock = threading.Lock()
        self._count: int | None = None
        self._results: dict[int, Transcription] = {}

    def start(self) -> None:
        """Begins with the first channel."""
        self._follow(0, self._heard)

    def _heard(self, count: int) -> None:
        """Called by the thread that decodes the first channel."""
        with self._lock:
            is_news, self._count = self._count is None, self._count or count
        for channel in range(1, count) if is_news else ():
            self._follow(channel, None)

    def _follow(self, channel: int, on_channels: OnChannels | None) -> None:
        try:
            future = self._begin(channel, on_channels)
        except BaseException as error:  # noqa: BLE001 - this is a thread of the engine: it goes to the caller
            self._fail(error)
            return
        future.add_done_callback(lambda done: self._came(channel, done))

    def _came(self, channel: int, done: "Future[Transcription]") -> None:
        error = done.exception()
        if error is not None:
            self._fail(error)
            return
        with self._lock:
            self._results[channel] = done.result()
            is_complete = len(self._results) == (self._count or 1)
        if is_complete and not self.future.done():
            self.future.set_result(self._gathered())

    def _gathered(self) -> ChannelTranscriptions:
        if self._count is None:  # nothing could be decoded
            return ChannelTranscriptions(request_id=self._request_id, error=self._results[0].error)
        results = tuple(self._results[channel] for channel in range(self._count))
        return ChannelTranscriptions(request_id=self._request_id, channels=results)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)


def reread(audio: AudioSource) -> AudioSource:
    """A source that can be read once a channel: of a stream its content.

    Raises:
      AudioError: the stream cannot be read.
    """
    if not isinstance(audio, ReadableFile) or isinstance(audio, io.TextIOBase):
        return audio
    try:
        return audio.read()
    except (OSError, ValueError) as error:
        raise AudioError(f"the stream cannot be read: {error}", kind="unreadable") from error
