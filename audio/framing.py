"""Checks whether a container's frames reach to the end that it promises: Ogg pages, MP4 boxes, MP3 frames.

The decoders pass over such holes and cuts in silence.
"""

import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from headrace.audio.streams import ByteStream

OGG_FIRST, OGG_LAST = 2, 4
"""The bits of a page's flags that mark the first and the last page of a stream."""
REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
MP3_BITRATES = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""kbit/s of layer III by the header's index, for MPEG-1 and for MPEG-2 and 2.5 (ISO 11172-3, 13818-3)."""


class OggLayout(NamedTuple):
    """What the pages of an Ogg file tell."""

    is_complete: bool
    """whole, undamaged pages follow each other to one that is marked as the last"""
    is_chained: bool
    """another recording follows the first"""


def ogg_layout(stream: ByteStream) -> OggLayout:
    """How the pages lie, up to the first damage."""
    offset, flags, has_sound, is_chained = 0, 0, False, False
    while offset < stream.size:
        header = stream.read_at(offset, 27 + 255)
        if len(header) < 27 or header[:4] != b"OggS":
            return OggLayout(False, is_chained)
        num_segments = header[26]
        num_bytes = 27 + num_segments + sum(header[27 : 27 + num_segments])
        page = stream.read_at(offset, num_bytes)
        if len(page) < num_bytes or _ogg_checksum(page) != int.from_bytes(page[22:26], "little"):
            return OggLayout(False, is_chained)
        flags = header[5]
        is_chained |= bool(flags & OGG_FIRST) and has_sound
        has_sound |= not flags & OGG_FIRST
        offset += num_bytes
    return OggLayout(bool(flags & OGG_LAST), is_chained)


def mp4_is_complete(stream: ByteStream) -> bool:
    """Whether the outermost boxes end within the file."""
    return all(end <= stream.size for end in _mp4_box_ends(stream))


def mp3_declares_length(stream: ByteStream) -> bool:
    """Whether the first frame of an MP3 file says how many there are."""
    return re.search(rb"Xing|Info|VBRI", stream.read_at(_id3_bytes(stream), 2048)) is not None


def mp3_frame_bytes(header: bytes) -> int | None:
    """Bytes of the layer III frame that starts with these four; None where they are no such header."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    version, index, rate_index = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or index in (0, 15) or rate_index == 3:
        return None
    is_first = version == 3
    rate = (44_100, 48_000, 32_000)[rate_index] // {3: 1, 2: 2, 0: 4}[version]
    bitrate = MP3_BITRATES[is_first][index] * 1000
    return (144 if is_first else 72) * bitrate // rate + (header[2] >> 1 & 1)


def _ogg_checksum(page: bytes) -> int:
    """CRC-32 of a page whose own checksum counts as 0 (RFC 3533, sec. 6).

    It runs from the highest bit to the lowest, starts at 0 and is not inverted; zlib's is the mirror image.
    """
    mirrored = (page[:22] + bytes(4) + page[26:]).translate(REVERSED_BITS)
    crc = zlib.crc32(mirrored, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(crc.to_bytes(4, "little").translate(REVERSED_BITS), "big")


def _mp4_box_ends(stream: ByteStream) -> Iterator[int]:
    offset = 0
    while offset + 8 <= stream.size:
        header = stream.read_at(offset, 16)
        size = int.from_bytes(header[:4], "big")
        if size == 1:
            size = int.from_bytes(header[8:16], "big")
        if size < 8:
            return
        offset += size
        yield offset


def _id3_bytes(stream: ByteStream) -> int:
    """Bytes of the ID3v2 tag in front; its length is four groups of seven bits."""
    head = stream.read_at(0, 10)
    if len(head) < 10 or head[:3] != b"ID3":
        return 0
    return 10 + sum(byte << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
