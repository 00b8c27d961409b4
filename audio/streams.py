"""A file's bytes as the decoders see them."""

import io
from typing import Protocol, runtime_checkable


@runtime_checkable
class SeekableFile(Protocol):
    """A binary file object that can seek."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, none at the end."""
        ...

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """The new position."""
        ...

    def tell(self) -> int:
        """The position."""
        ...


class ByteStream:
    """The bytes of a seekable file from its present position on.

    Has no name, so that no decoder goes by an extension. What reading raises is kept in `error` and looks
    like the end of the file to the decoder, whose callbacks cannot raise.
    """

    def __init__(self, file: SeekableFile) -> None:
        self._file = file
        self._base = file.tell()
        self.size = file.seek(0, io.SEEK_END) - self._base
        self.error: Exception | None = None
        self.seek(0)

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, all that are left where it is negative."""
        if self.error is not None:
            return b""
        try:
            return self._file.read(size)
        except Exception as error:  # noqa: BLE001 (kept: the decoder cannot take it, the caller raises)
            self.error = error
            return b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """The new position; damaged files lead decoders to before the start, which counts as the start."""
        target = max(0, offset + (0, self._position(), self.size)[whence])
        try:
            self._file.seek(self._base + target)
        except Exception as error:  # noqa: BLE001 (as above)
            self.error = error
        return target

    def tell(self) -> int:
        """The position, 0 at the first byte that the decoder sees."""
        return self._position()

    def read_at(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, fewer at the end; leaves the stream rewound."""
        self.seek(offset)
        data = self.read(size)
        self.seek(0)
        return data

    def _position(self) -> int:
        return self._file.tell() - self._base
