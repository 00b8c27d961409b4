"""The output directory before and after a run: whose it is, whether it can be written, when it is done."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.pipelines.commit import run_directory, scratch_directory
from headrace.pipelines.errors import OutputError
from headrace.pipelines.files import (
    delete,
    exists,
    is_local,
    join,
    list_directory,
    make_directory,
    parent,
    write_whole,
)
from headrace.pipelines.heartbeat import refuse_living_run
from headrace.pipelines.journal import journal_directory


def refuse_foreign_output(output: str, *, has_record: bool) -> None:
    """Refuses a directory that holds something which is not a run of ours.

    Raises:
      OutputError: it names what is there.
    """
    if is_local(output) and os.path.exists(output) and not os.path.isdir(output):
        raise OutputError(f"the output {output} is a file: choose a directory")
    if has_record:
        return
    found = os.listdir(output) if is_local(output) and os.path.isdir(output) else list_directory(output)
    others = sorted(name for name in found if name != "__run")
    if others:
        raise OutputError(
            f"the output {output} holds {others[0]} but no run of headrace: choose an empty directory"
        )


def refuse_unwritable_output(output: str) -> None:
    """Tries whether a file can be written in the directory, or in the one above that is there.

    Raises:
      OutputError: it cannot.
    """
    if not is_local(output):
        return
    directory = output
    while not os.path.isdir(directory):
        if os.path.exists(directory):
            raise OutputError(f"cannot write to the output {output}: {directory} is a file")
        directory = parent(directory)
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(f"cannot write to the output {output}: {directory}: {error.strerror}") from error


@contextmanager
def claim_output(output: str) -> Iterator[None]:
    """Keeps other runs out of the directory, up to the end of the block or of the process.

    On a local file system by a lock, which goes with the process; elsewhere by the heartbeat.

    Raises:
      OutputError: another run has it, or it cannot be made.
    """
    refuse_living_run(output)
    if not is_local(output):
        yield
        return
    try:
        make_directory(run_directory(output))
        lock = os.open(run_directory(output, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OutputError(f"cannot write to the output {output}: {error.strerror or error}") from error
    try:
        with suppress(OSError):  # a file system without locks: then nobody is kept out
            _lock_or_refuse(lock, output)
        yield
    finally:
        os.close(lock)


def is_claimed(output: str) -> bool | None:
    """Whether a process of this machine has the directory; None where that cannot be told."""
    if not is_local(output):
        return None
    try:
        lock = os.open(run_directory(output, "lock"), os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(lock)
    return False


def _lock_or_refuse(lock: int, output: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(
            f"another run is writing to {output}: wait for its end or choose another output directory"
        ) from error


def open_output(output: str) -> None:
    """Makes the directories of a run and deletes what an earlier launch left unfinished.

    Raises:
      OutputError: they cannot be made.
    """
    scratch = scratch_directory(output)
    try:
        make_directory(scratch)
        delete(run_directory(output, "_SUCCESS"))
        for name in list_directory(scratch):
            delete(join(scratch, name))
    except OSError as error:
        raise OutputError(f"cannot write to the output {output}: {error.strerror or error}") from error


def delete_run(output: str) -> None:
    """Deletes the parts of the run in a directory and what tells of it.

    Raises:
      OutputError: a file cannot be deleted.
    """
    try:
        for name in (*list_directory(output, "part-"), *list_directory(output, "compact-")):
            delete(join(output, name))
        for name in list_directory(journal_directory(output)):
            delete(join(journal_directory(output), name))
        for name in ("_SUCCESS", "metrics.parquet", "heartbeat.json", "run.json"):
            delete(run_directory(output, name))
    except OSError as error:
        raise OutputError(f"cannot delete the run in {output}: {error.strerror or error}") from error


def mark_success(output: str) -> None:
    """Writes _SUCCESS: every row of the input has its row in the output."""
    path = run_directory(output, "_SUCCESS")
    if not exists(path):
        write_whole(path, b"", scratch=scratch_directory(output))
