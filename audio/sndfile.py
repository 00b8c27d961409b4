"""Decodes with libsndfile."""

import re
from typing import Any, cast

import soundfile

from headrace.audio.framing import ogg_layout
from headrace.audio.samples import BLOCK, MonoStream, Outcome
from headrace.audio.streams import ByteStream

MAGICS = (
    b"RIFF", b"RIFX", b"RF64", b"FORM", b".snd", b"dns.", b"fLaC", b"OggS", b"riff", b"caff", b"NIST_1A",
    b"2BIT", b"Creative Voice File", b"\x64\xa3", b"\x00\x01\xa3\x64", b"\x64\xa3\x01\x00", b"PVF1",
)  # fmt: skip
"""First bytes of the formats that it is trusted with.

Not MPEG audio: there it writes to stderr and hides damage. Not its guesses at files without a magic, which
take tables and raw samples for sound.
"""
MAX_DECLARED_BYTES = 0x7F000000
"""A header that declares more was written to a pipe, before its length was known."""
MAX_REST_BYTES = 4096
"""More bytes than this after the declared end are samples that the header leaves out."""


def decode_sndfile(stream: ByteStream, mono: MonoStream) -> Outcome:
    """Decodes the stream.

    Raises:
      AudioError: a sample is not finite, or the rate is impossible.
    """
    head = stream.read_at(0, 32)
    if not head.startswith(MAGICS):
        return Outcome.UNKNOWN
    if head.startswith(b"OggS") and ogg_layout(stream).is_chained:
        return Outcome.UNKNOWN  # libsndfile stops after the first recording of several
    try:
        file = soundfile.SoundFile(cast(Any, stream))
    except soundfile.LibsndfileError:
        return Outcome.UNKNOWN
    with file:
        declared, num_read = file.frames, 0
        try:
            while len(block := file.read(max(1, BLOCK // file.channels), dtype="float32", always_2d=True)):
                mono.add(block.T, file.samplerate)
                num_read += len(block)
        except soundfile.LibsndfileError:
            return Outcome.BROKEN
        is_cut = num_read < declared or _declares_more(file.format, file.extra_info, stream, num_read)
    return Outcome.CUT if is_cut else Outcome.COMPLETE


def _declares_more(container: str, log: str, stream: ByteStream, num_frames: int) -> bool:
    """Whether the container says that it holds more than it does; libsndfile silently cuts the length."""
    if container == "OGG":
        return not ogg_layout(stream).is_complete
    if container == "NIST":
        count = re.search(rb"sample_count -i (\d+)", stream.read_at(0, 1024))
        return count is not None and int(count[1]) > num_frames
    if container == "RF64":
        return "does not match value from 'ds64' chunk" in log
    name = "riff" if container == "W64" else "(?:data|SSND|Data Size)"
    sizes = re.search(rf"^ *{name} *: (\d+) \(should be (\d+)\)", log, re.MULTILINE)
    if sizes is not None and int(sizes[2]) < int(sizes[1]) < MAX_DECLARED_BYTES:
        return True
    rest = re.search(r"Unknown chunk marker .* at position (\d+)", log)
    return rest is not None and stream.size - int(rest[1]) > MAX_REST_BYTES
