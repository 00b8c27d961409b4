"""Decodes a file by its content."""

from headrace.audio.errors import AudioError
from headrace.audio.ffmpeg import decode_ffmpeg
from headrace.audio.recording import Ending
from headrace.audio.samples import MEAN, MonoStream, Outcome, Pick, Sink, no_samples
from headrace.audio.sndfile import decode_sndfile
from headrace.audio.sniffing import HEAD_BYTES, is_shortened, refuse_archive, unknown_content
from headrace.audio.streams import ByteStream

TRUNCATED = "decode_truncated"
"""The flag of a recording of which only a part could be decoded."""


def decode(stream: ByteStream, name: str, sink: Sink, pick: Pick = MEAN) -> Ending:
    """Passes on the recording in the stream, decoded by libsndfile where it takes it whole, else by FFmpeg.

    Where libsndfile meets damage, FFmpeg goes on from there if it comes further.

    Raises:
      AudioError: kinds `empty`, `archive`, `raw`, `undecodable`, `no_audio`, `non_finite`, `sampling_rate`,
        `channel`, and `unreadable` where reading failed.
    """
    head = stream.read_at(0, HEAD_BYTES)
    _check_read(stream, name)
    if not head:
        raise AudioError(
            f"{name}: has no bytes: it was not written, or not uploaded completely", kind="empty"
        )
    refuse_archive(head, name)
    first = MonoStream(name, sink, pick=pick)
    found = decode_sndfile(stream, first)
    _check_read(stream, name)
    first.close()
    if found in (Outcome.COMPLETE, Outcome.CUT) and first.duration_s:
        return Ending(first.duration_s, _flags(found))
    second = MonoStream(name, sink, pick=pick, skip=first.num_made)
    found_next = decode_ffmpeg(stream, second, name)
    _check_read(stream, name)
    is_explained = found_next is Outcome.COMPLETE and not is_shortened(head)
    if found is Outcome.UNKNOWN and not second.duration_s and not is_explained:
        raise unknown_content(stream, name)
    second.close()
    if not first.num_made and not second.num_made:
        raise no_samples(name)
    return Ending(
        max(first.duration_s, second.duration_s),
        (TRUNCATED,) if found is Outcome.BROKEN else _flags(found_next),
    )


def _check_read(stream: ByteStream, name: str) -> None:
    if stream.error is not None:
        raise AudioError(
            f"{name}: reading it failed ({type(stream.error).__name__}): check the disk or the connection",
            kind="unreadable",
        )


def _flags(outcome: Outcome) -> tuple[str, ...]:
    return () if outcome is Outcome.COMPLETE else (TRUNCATED,)
