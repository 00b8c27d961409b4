"""Identical work, sent to an engine once: further rows of the same content get the first one's output."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from headrace.pipelines.work import WorkRow

# Outputs that are kept for rows to come, some kilobytes each.
_MAX_OUTPUTS = 10_000


class Sent(NamedTuple):
    """The future of some content's output."""

    future: "Future[Any]"
    is_first: bool
    """Whether the work was sent to the engine for it."""


class SharedOutputs:
    """Futures of outputs by the content of the work; may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: OrderedDict[bytes, Future[Any]] = OrderedDict()

    def send(self, key: bytes, submit: "Callable[[], Future[Any]]") -> Sent:
        """Submits the work of a content that is new; else waits for the output of the first."""
        with self._lock:
            known = self._futures.get(key)
            if known is not None:
                self._futures.move_to_end(key)
                return Sent(known, False)
            promise: Future[Any] = Future()
            self._futures[key] = promise
            if len(self._futures) > _MAX_OUTPUTS:
                self._futures.popitem(last=False)
        try:
            future = submit()
        except BaseException as error:
            self._fail(key, promise, error)
            raise
        future.add_done_callback(lambda done: self._keep(key, promise, done))
        return Sent(future, True)

    def _keep(self, key: bytes, promise: "Future[Any]", done: "Future[Any]") -> None:
        """Called by the engine's thread."""
        error = done.exception()
        if error is not None:
            self._fail(key, promise, error)
            return
        output = done.result()
        if output.error is not None:
            self._forget(key, promise)
        promise.set_result(output)

    def _fail(self, key: bytes, promise: "Future[Any]", error: BaseException) -> None:
        self._forget(key, promise)
        promise.set_exception(error)

    def _forget(self, key: bytes, promise: "Future[Any]") -> None:
        """No failure is kept: the next row of the content tries again."""
        with self._lock:
            if self._futures.get(key) is promise:
                del self._futures[key]


def content_key(row: WorkRow) -> bytes:
    """A hash of what the engine is given for a row: equal for rows of equal work."""
    payload = row.payload
    if isinstance(payload, Mapping) and "array" in payload:
        array = payload["array"]
        described = f"samples {payload['sampling_rate']} {array.dtype} {array.shape}"
        content = array.tobytes()
    elif isinstance(payload, bytes):
        described, content = "bytes", payload
    else:
        described = "text" if isinstance(payload, str) else "messages"
        content = json.dumps(payload, sort_keys=True, default=str).encode()
    return hashlib.blake2b(f"{described} {row.options}\0".encode() + content, digest_size=20).digest()
