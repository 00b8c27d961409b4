"""Tells what a file is from its first bytes, where it is not audio that a decoder takes."""

import numpy as np

from headrace.audio.errors import AudioError
from headrace.audio.framing import mp3_frame_bytes
from headrace.audio.streams import ByteStream

HEAD_BYTES = 64 * 1024
"""Bytes that are looked at."""

ARCHIVES = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}
OTHERS = {
    b"PAR1": "a Parquet table",
    b"ARROW1": "an Arrow table",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program",
    b"SQLite format 3": "an SQLite database",
    b"\x93NUMPY": "a NumPy array",
    b"version https://git-lfs": "a Git LFS pointer (fetch the file with git lfs pull)",
}
CONTAINERS = {
    b"RIFF": "WAV",
    b"RF64": "WAV",
    b"FORM": "AIFF",
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
    b"NIST_1A": "SPHERE",
    b"ID3": "MP3",
    b"\x1aE\xdf\xa3": "WebM or Matroska",
    b"caff": "CAF",
}
TEXT_STARTS = {
    b"<!doctype html": "an HTML page",
    b"<html": "an HTML page",
    b"<?xml": "an XML document",
    b"#extm3u": "a playlist",
    b"{": "JSON text",
}


def refuse_archive(head: bytes, name: str) -> None:
    """Nothing where the file can be a recording.

    Raises:
      AudioError: kind `archive`, it is one.
    """
    archive = next((kind for magic, kind in ARCHIVES.items() if head.startswith(magic)), None)
    if archive is None and _is_tar(head):
        archive = "tar"
    if archive is not None:
        raise AudioError(
            f"{name}: is an archive ({archive}), not a recording: unpack it first", kind="archive"
        )


def is_shortened(head: bytes) -> bool:
    """Whether it is a SPHERE file with Shorten compression, which decoders open and cannot decode."""
    return head.startswith(b"NIST_1A") and b"shorten" in head[:1024]


def unknown_content(stream: ByteStream, name: str) -> AudioError:
    """The error for a file that no decoder knows."""
    head = stream.read_at(0, HEAD_BYTES)
    what = next((text for magic, text in OTHERS.items() if head.startswith(magic)), None) or _text_kind(head)
    what = what or _damaged_kind(head)
    if what is None and _looks_like_samples(head):
        return AudioError(
            f"{name}: looks like raw samples without a header, so that their rate and format are unknown: "
            "add a WAV header, or pass an array with its sampling_rate",
            kind="raw",
        )
    what = what or "no audio format that is known here"
    return AudioError(
        f"{name}: {stream.size} bytes of {what}, wanted a recording (wav, flac, mp3, m4a, ogg, opus, webm, "
        "mp4 and the like): check that it is complete, or convert it to WAV or FLAC",
        kind="undecodable",
    )


def _damaged_kind(head: bytes) -> str | None:
    """The container that the first bytes promise."""
    if is_shortened(head):
        return "a SPHERE file compressed with shorten (expand it with sph2pipe)"
    if head[4:8] == b"ftyp" and b"moov" in head:
        return "an MP4 or M4A file that is cut off before its samples"
    if head[4:8] == b"ftyp":
        return "an MP4 or M4A file without its index (it was cut off, or was still being written)"
    if mp3_frame_bytes(head) is not None:
        return "a damaged MP3 file"
    kind = next((kind for magic, kind in CONTAINERS.items() if head.startswith(magic)), None)
    return kind and f"a damaged {kind} file"


def _is_tar(head: bytes) -> bool:
    """A tar header block holds the sum of its own bytes, the sum's field counted as spaces."""
    block = head[:512]
    field = block[148:156].strip(b" \x00")
    if len(block) < 512 or not field or any(byte not in b"01234567" for byte in field):
        return False
    return int(field, 8) == sum(block) - sum(block[148:156]) + 8 * ord(" ")


def _text_kind(head: bytes) -> str | None:
    """What kind of text it is; None where it is not text."""
    sample = head[:4096]
    try:
        text = sample.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(sample) - 3:
            return None
        text = sample[: error.start].decode("utf-8")
    if not all(char.isprintable() or char in "\r\n\t\f\ufeff" for char in text):
        return None
    start = text.lstrip("\ufeff \r\n\t").lower().encode()
    return next((kind for mark, kind in TEXT_STARTS.items() if start.startswith(mark)), "text")


def _looks_like_samples(head: bytes) -> bool:
    """Whether neighbours are alike, or the bytes of a sample vary unlike each other, as in PCM."""
    if len(head) < 64:
        return False
    data = np.frombuffer(head[: len(head) // 24 * 24], np.uint8)
    if any(_smoothness(data.view(kind)) > 0.5 for kind in ("<i2", ">i2", "u1", "i1")):
        return True
    return any(_unevenness(data, width) > 4 for width in (2, 3, 4))


def _smoothness(samples: np.ndarray) -> float:
    """Correlation of samples with their neighbours: near 0 for noise and packed data."""
    values = samples.astype(np.float64)
    values -= values.mean()
    power = float(np.dot(values, values))
    return float(np.dot(values[1:], values[:-1])) / power if power > 0 else 0.0


def _unevenness(data: np.ndarray, width: int) -> float:
    """How unlike the bytes of a `width`-byte sample are distributed: 1 where they are all alike."""
    repeats = [
        float(np.square(np.bincount(data[byte::width], minlength=256) / (data.size // width)).sum())
        for byte in range(width)
    ]
    return max(repeats) / min(repeats)
