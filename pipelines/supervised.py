"""The process that a supervisor starts: does what it is told over a socket, and ends with its supervisor."""

import importlib
import logging
import logging.handlers
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from headrace.pipelines.errors import RunError
from headrace.pipelines.messages import Failed, Logged, Message, Order
from headrace.pipelines.processes import descendants


def main(descriptor: int) -> None:
    os.set_inheritable(descriptor, False)
    line = _Line(Connection(descriptor))
    order: Order = line.connection.recv()
    threading.Thread(target=_end_with_supervisor, args=(line.connection,), daemon=True).start()
    root = logging.getLogger()
    root.handlers = [_Forwarding(line)]
    root.setLevel(order.log_level)
    module, _, name = order.target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        line.send(function(*order.arguments, line.send if order.wants_progress else None))
    except Exception as error:  # noqa: BLE001 - the supervisor raises it
        line.send(Failed(error=_sendable(error)))
    # Threads of Beam's or of an engine's may still wait for something: nothing is left that needs them.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


class _Line:
    """The connection, for several threads."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock, suppress(OSError):  # the supervisor has gone, and so will this process in a moment
            self.connection.send(message)


class _Forwarding(logging.handlers.QueueHandler):
    """Sends log records to the supervisor, which prints them among its own."""

    def __init__(self, line: _Line) -> None:
        super().__init__(line)  # pyright: ignore[reportArgumentType]

    def enqueue(self, record: logging.LogRecord) -> None:
        self.queue.send(Logged(record=record))  # pyright: ignore[reportAttributeAccessIssue]


def _end_with_supervisor(connection: Connection) -> None:
    """Ends this process and its workers when the other end of the line is closed: nobody else would."""
    with suppress(EOFError, OSError):
        connection.recv()
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os._exit(1)


def _sendable(error: Exception) -> Exception:
    """The error, or what can be said of one that cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception as failure:  # noqa: BLE001 - any class may pickle in any way
        told: Any = failure
        del told
        return RunError(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
