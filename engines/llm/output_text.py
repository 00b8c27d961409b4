"""The text of one sample while it grows, and where a stop string ends it."""

from collections.abc import Sequence

from headrace.engines.llm.detokenizer import Detokenizer


class OutputText:
    """Text of the tokens pushed so far.

    A stop string ends the text with the token that completes it: before the string, or after it where
    `include_stop`. Each token costs the same, however long the text is.
    """

    def __init__(
        self, detokenizer: Detokenizer, stop: Sequence[str] = (), *, include_stop: bool = False
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._num_tail = max(map(len, self._stop), default=1) - 1
        self._tail = ""
        """The settled text's last characters, one fewer than the longest stop string has."""
        self._pieces: list[str] = []
        self._num_settled = 0
        """Characters of the settled text, which is the pieces joined."""
        self._unread: list[str] = []
        """The settled text that `read` has not given out, in pieces."""
        self._num_read = 0
        self._final: str | None = None
        self.stop_reason: str | None = None
        """The stop string that ended the text."""

    def push(self, token: int, *, may_stop: bool = True) -> bool:
        """Adds a token's text; whether that completed a stop string, which `may_stop` lets end the text."""
        piece = self._detokenizer.push(token)
        held = self._detokenizer.peek() if self._stop and may_stop else ""
        end = self._find_end(piece + held) if may_stop else None
        self._pieces.append(piece)
        self._unread.append(piece)
        self._num_settled += len(piece)
        self._tail = (self._tail + piece)[-self._num_tail :] if self._num_tail else ""
        if end is not None:
            self._final = ("".join(self._pieces) + held)[:end]
        return end is not None

    def finish(self) -> str:
        """The whole text, at the end of the row."""
        if self._final is None:
            self._pieces.append(self._detokenizer.flush())
            self._final = "".join(self._pieces)
        return self._final

    def shown(self) -> str:
        """All the text, but for what may yet become a stop string."""
        self.read()
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0][: self._num_read]

    def read(self) -> str:
        """The text that was not read before, but for what may yet become a stop string."""
        if self._final is not None:
            new = self._final[self._num_read :]
        else:
            unread = "".join(self._unread)
            new = unread[: len(unread) - self._num_doubtful(unread)]
            self._unread = [unread[len(new) :]]
        self._num_read += len(new)
        return new

    def _find_end(self, new: str) -> int | None:
        """Where the text ends, if `new`, which follows the settled text, completes a stop string."""
        searched = self._tail + new
        start = self._num_settled - len(self._tail)
        found = []
        for stop in self._stop:
            at = searched.find(stop, max(0, len(self._tail) - len(stop) + 1))
            if at >= 0:
                found.append((at, stop))
        if not found:
            return None
        at, stop = min(found)
        self.stop_reason = stop
        return start + at + (len(stop) if self._include_stop else 0)

    def _num_doubtful(self, unread: str) -> int:
        """Length of the longest end of the text with which a stop string begins, if that may be cut off."""
        if self._include_stop:
            return 0
        ends = (unread[-length:] for length in range(min(len(unread), self._num_tail), 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self._stop)), 0)
