"""A file mapped for reading, walked from its beginning."""

import mmap
import struct
from pathlib import Path

from headrace.engines.errors import ModelError


class MappedFile:
    """A mapped file and a place in it; reading past the end is a ModelError that names the file.

    Raises:
      ModelError: the file is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        if path.stat().st_size == 0:
            raise ModelError(f"{str(path)!r} is empty: fetch it again")
        with path.open("rb") as file:
            self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def unpack(self, form: str) -> tuple:
        """The values of a struct format at this place."""
        start = self.skip(struct.calcsize(form))
        return struct.unpack_from(form, self.buffer, start)

    def take(self, num_bytes: int) -> bytes:
        """The next bytes."""
        start = self.skip(num_bytes)
        return self.buffer[start : start + num_bytes]

    def skip(self, num_bytes: int) -> int:
        """Moves on; returns the place before."""
        start = self.offset
        self.require(start + num_bytes)
        self.offset = start + num_bytes
        return start

    def require(self, num_bytes: int) -> None:
        """Checks that the file has this many bytes."""
        if num_bytes > len(self.buffer):
            raise ModelError(
                f"{str(self.path)!r} is cut short: it has {len(self.buffer)} bytes, {num_bytes} are wanted; "
                "fetch it again"
            )

    def unload(self) -> None:
        """Takes its pages out of the process's memory, where the system can; views of them stay valid."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED)

    def damaged(self, what: str) -> ModelError:
        """The error to raise for a file whose contents make no sense."""
        return ModelError(f"{str(self.path)!r} is damaged or another kind of file: {what}")
