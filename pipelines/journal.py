"""The journal of rows that were submitted and not finished: what a later attempt knows of a process's end.

Each attempt at a chunk has a file of its own under __run/journal. It goes with the attempt's end, good or
bad, so that a file which is still there is of an attempt whose process died. Its lines, after one of JSON
that says who wrote it: `+7` row 7 was submitted, `-7` it is finished, `? 7 9` from here on only these rows
are in the engine, `x SIGSEGV` why the process died, where somebody saw it. It holds places of rows, nothing
of their content.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from headrace.engines import EngineError
from headrace.pipelines.commit import run_directory, scratch_directory
from headrace.pipelines.files import (
    delete,
    is_local,
    join,
    list_directory,
    make_directory,
    read_bytes,
    write_whole,
)

logger = logging.getLogger(__name__)

# On a file system that cannot append, the whole journal is written again, at most this often.
_REMOTE_INTERVAL_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What the journal of an attempt that died holds."""

    name: str
    """Name of the file; names sort by the time at which the attempts began."""
    host: str
    """Machine that ran it."""
    pid: int
    """Process that ran it."""
    in_flight: frozenset[int] = frozenset()
    """Rows that were submitted and not finished."""
    trial: frozenset[int] = frozenset()
    """Rows that had the engine to themselves when it ended; empty where there was no trial."""
    cleared: frozenset[int] = frozenset()
    """Rows that were finished in a trial."""
    death: str | None = None
    """Why the process died, None where nobody saw it."""
    num_finished: int = 0
    """Rows that came back."""


@dataclass(kw_only=True, slots=True)
class _Lines:
    """The state that a journal's lines add up to."""

    in_flight: set[int] = field(default_factory=set)
    trial: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)
    death: str | None = None
    num_finished: int = 0

    def read(self, line: str) -> None:
        mark, rest = line[:1], line[1:].strip()
        if mark == "+":
            self.in_flight.add(int(rest))
        elif mark == "-":
            self.in_flight.discard(int(rest))
            self.num_finished += 1
            if int(rest) in self.trial:
                self.cleared.add(int(rest))
        elif mark == "?":
            self.trial = {int(each) for each in rest.split()}
        elif mark == "x":
            self.death = rest


class Journal:
    """The journal of an attempt that is going on. Its methods may be called from any thread."""

    def __init__(self, output: str, part: str) -> None:
        self._path = join(journal_directory(output), f"{part}.{time.time_ns():020d}-{uuid.uuid4().hex[:6]}")
        self._scratch = scratch_directory(output)
        self._lock = threading.Lock()
        self._lines = [json.dumps({"host": socket.gethostname(), "pid": os.getpid()})]
        self._file: int | None = None
        self._written_s = 0.0
        self._is_closed = False
        try:
            make_directory(journal_directory(output))
            if is_local(self._path):
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            self._write(self._lines[0], now=True)
        except OSError as error:
            self._give_up(error)

    def submitted(self, place: int) -> None:
        """A row is about to be handed to the engine."""
        self._write(f"+{place}")

    def finished(self, place: int) -> None:
        """A row came back, with a result or an error."""
        self._write(f"-{place}")

    def trial(self, places: Sequence[int]) -> None:
        """From here on only these rows are in the engine, until the next call; none of them ends it."""
        self._write(" ".join(["?", *map(str, places)]), now=True)

    def died(self, death: str) -> None:
        """The process or its engine is lost: `death` is one word that says how."""
        self._write(f"x {death}", now=True)
        self._close()

    def end(self) -> None:
        """The attempt ended in good order: nothing is left of it."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._close()
            with suppress(OSError):
                delete(self._path)

    def _write(self, line: str, *, now: bool = False) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                if self._file is not None:
                    os.write(self._file, f"{line}\n".encode())
                    return
                self._lines.append(line)
                if now or time.monotonic() - self._written_s > _REMOTE_INTERVAL_S:
                    self._written_s = time.monotonic()
                    write_whole(self._path, "\n".join(self._lines).encode(), scratch=self._scratch)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Goes on without a journal: a full disk must not end the run."""
        self._is_closed = True
        logger.warning("cannot write the journal of a part: %s", error.strerror or type(error).__name__)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None


@contextmanager
def attempt(output: str, part: str) -> Iterator[Journal]:
    """The journal of an attempt, which goes with the block's end, except where the engine fails in it."""
    journal = Journal(output, part)
    try:
        yield journal
    except EngineError:
        journal.died("the engine failed")
        raise
    finally:
        journal.end()


def journal_directory(output: str) -> str:
    """Where the journals of a run lie."""
    return run_directory(output, "journal")


def past_attempts(output: str, part: str = "part-") -> list[Attempt]:
    """The attempts that died, at one part or at all, in the order in which they began."""
    directory = journal_directory(output)
    prefix = part if part == "part-" else f"{part}."
    found = []
    for name in list_directory(directory, prefix):
        with suppress(OSError):  # another process has just ended its attempt
            found.append(_read(name, read_bytes(join(directory, name))))
    return sorted(found, key=lambda each: each.name.rpartition(".")[2])


def finished_rows(output: str, *, since: float) -> dict[str, int]:
    """Rows that came back in the attempts that go on and began after `since`, by part, of any process."""
    found: dict[str, int] = {}
    for attempt in past_attempts(output):
        part, _, began = attempt.name.rpartition(".")
        if attempt.death is None and int(began.partition("-")[0]) / 1e9 >= since:
            found[part] = attempt.num_finished
    return found


def settle(output: str, pid: int, death: str) -> None:
    """Notes in the journals of a process of this machine how it died."""
    for attempt in past_attempts(output):
        if attempt.death is None and (attempt.host, attempt.pid) == (socket.gethostname(), pid):
            path = join(journal_directory(output), attempt.name)
            content = read_bytes(path) + f"\nx {death}\n".encode()
            write_whole(path, content, scratch=scratch_directory(output))


def discard(output: str, attempt: Attempt) -> None:
    """Deletes the journal of an attempt that was ended through no fault of its rows."""
    delete(join(journal_directory(output), attempt.name))


def forget(output: str, parts: Iterable[str]) -> None:
    """Deletes the journals of parts that are committed."""
    committed = set(parts)
    directory = journal_directory(output)
    for name in list_directory(directory, "part-"):
        if name.rpartition(".")[0] in committed:
            delete(join(directory, name))


def _read(name: str, content: bytes) -> Attempt:
    first, *rest = content.decode("utf-8", "replace").split("\n")
    lines = _Lines()
    try:
        writer = json.loads(first)
        for line in rest:
            lines.read(line)
    except ValueError:  # cut off in the middle of a line
        writer = {} if not rest else json.loads(first)
    return Attempt(
        name=name,
        host=writer.get("host", ""),
        pid=writer.get("pid", 0),
        in_flight=frozenset(lines.in_flight),
        trial=frozenset(lines.trial),
        cleared=frozenset(lines.cleared),
        death=lines.death,
        num_finished=lines.num_finished,
    )
