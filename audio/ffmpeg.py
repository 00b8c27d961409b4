"""Decodes with FFmpeg's libraries, through PyAV."""

from typing import Any, cast

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.container import InputContainer
from av.packet import Packet

from headrace.audio.errors import AudioError
from headrace.audio.framing import mp3_declares_length, mp3_frame_bytes, mp4_is_complete
from headrace.audio.samples import MonoStream, Outcome
from headrace.audio.streams import ByteStream

FORMATS = (
    "aac,ac3,eac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dsf,dts,flac,flv,latm,loas,matroska,webm,mov,mp4,m4a,3gp,"
    "3g2,mj2,mp3,mpc,mpc8,mpeg,mpegts,mxf,nistsphere,ogg,oma,qcp,rm,tak,tta,voc,w64,wav,wv"
)
"""Containers that are tried: the ones with a header, and none that names other files (playlists)."""
OPTIONS = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
ESTIMATED = ("aac", "ac3", "eac3", "dts", "mpeg", "loas", "latm")
"""Containers that do not say how long they are."""
TS_PACKET_BYTES = (188, 192, 204)
"""Packets of a transport stream: plain, with a time stamp, with error correction."""
SAFE_PLANES = 8
"""From this many planes on PyAV reads past the end of a frame's table of them."""
CUT_TOLERANCE_S = 0.2
"""An end that comes this much earlier than declared is a cut."""
GAP_TOLERANCE_S = 1.0
"""A hole of this length between packets is damage; voice codecs leave shorter ones in silence."""


def decode_ffmpeg(stream: ByteStream, mono: MonoStream, name: str) -> Outcome:
    """Decodes the first audio track of the stream.

    Raises:
      AudioError: there is no audio track (`no_audio`), its codec is not known (`undecodable`), a sample is
        not finite, or the rate is impossible.
    """
    stream.seek(0)
    try:
        container = cast(
            InputContainer, av.open(cast(Any, stream), options=OPTIONS, metadata_errors="ignore")
        )
    except (av.error.FFmpegError, OSError, ValueError):
        return Outcome.UNKNOWN
    with container:
        if not container.streams.audio:
            raise AudioError(
                f"{name}: holds no audio track ({container.format.name.split(',')[0]} container): "
                "give a recording or a video with sound",
                kind="no_audio",
            )
        if getattr(container.streams.audio[0], "codec_context", None) is None:
            raise AudioError(
                f"{name}: the codec of its audio track is not known here: convert it to WAV or FLAC",
                kind="undecodable",
            )
        progress = _Progress()
        _decode_packets(container, mono, progress, name)
        if progress.is_damaged:
            return Outcome.BROKEN
        is_cut = _is_cut(container, stream, progress, mono.duration_s)
    return Outcome.CUT if is_cut else Outcome.COMPLETE


class _Progress:
    """What the packets tell of the file's length and damage."""

    def __init__(self) -> None:
        self.is_damaged = False
        self.last_bytes, self.last_size = b"", 0
        self._first_s, self._end_s = 0.0, 0.0
        self._audio_end_s: float | None = None

    @property
    def span_s(self) -> float:
        """Seconds from 0, or from the first packet of any track before it, to the end of the last."""
        return self._end_s - self._first_s

    def add(self, packet: Packet, *, is_audio: bool) -> None:
        """Notes a packet."""
        if packet.pts is not None and packet.time_base is not None:
            start = float(packet.pts * packet.time_base)
            end = start + float((packet.duration or 0) * packet.time_base)
            self._first_s, self._end_s = min(self._first_s, start), max(self._end_s, end)
            if is_audio:
                hole_s = start - (start if self._audio_end_s is None else self._audio_end_s)
                self.is_damaged |= hole_s > GAP_TOLERANCE_S
                self._audio_end_s = end
        if is_audio and packet.size:
            self.last_bytes, self.last_size = bytes(memoryview(packet)[:4]), packet.size


def _decode_packets(container: InputContainer, mono: MonoStream, progress: _Progress, name: str) -> None:
    """Decodes what can be decoded; a packet that cannot is passed over.

    What fails before the first frame, or after the last of an MP3 file, is a tag, not sound.
    """
    track = container.streams.audio[0]
    packets = container.demux(list(container.streams))  # a damaged file can grow more on the way
    num_frames, has_failed = 0, False
    while True:
        try:
            packet = next(packets, None)
        except (av.error.FFmpegError, OSError, IndexError):
            progress.is_damaged = True
            return
        if packet is None:
            progress.is_damaged |= has_failed and container.format.name != "mp3"
            return
        is_audio = packet.stream_index == track.index
        progress.add(packet, is_audio=is_audio)
        if not is_audio:
            continue
        # The last packet of a WAV file without a length is short, which counts as corrupt.
        progress.is_damaged |= packet.is_corrupt and container.format.name != "wav"
        try:
            frames = packet.decode()
        except (av.error.FFmpegError, OSError):
            has_failed = num_frames > 0
            continue
        for frame in cast(list[AudioFrame], frames):
            num_frames += 1
            progress.is_damaged |= has_failed or frame.is_corrupt
            mono.add(_samples(frame, name), frame.sample_rate)


def _samples(frame: AudioFrame, name: str) -> np.ndarray:
    """[channels, samples] in the number format of the codec."""
    num_channels = frame.layout.nb_channels
    try:
        if frame.format.is_planar and num_channels < SAFE_PLANES:
            return frame.to_ndarray()
        if frame.format.is_planar:
            packer = AudioResampler(frame.format.packed, frame.layout, frame.sample_rate)
            (frame,) = packer.resample(frame)
        return frame.to_ndarray().reshape(-1, num_channels).T
    except (ValueError, av.error.FFmpegError):
        raise AudioError(
            f"{name}: {num_channels} channels of {frame.format.name} samples are not known here: "
            "convert it to WAV or FLAC",
            kind="undecodable",
        ) from None


def _is_cut(container: InputContainer, stream: ByteStream, progress: _Progress, decoded_s: float) -> bool:
    """Whether the file ends earlier than its container declares; lengths that are only estimates aside."""
    kind = container.format.name
    if kind.startswith("mov") and not mp4_is_complete(stream):
        return True
    if kind == "mpegts":
        return all(stream.size % size for size in TS_PACKET_BYTES)
    if kind == "mp3" and not mp3_declares_length(stream):
        whole = mp3_frame_bytes(progress.last_bytes)
        return whole is not None and progress.last_size < whole
    if container.duration is None or kind in ESTIMATED:
        return False
    reached_s = decoded_s if kind in ("mp3", "flac") else progress.span_s
    return reached_s < container.duration / av.time_base - CUT_TOLERANCE_S
