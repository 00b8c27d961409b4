"""Calls that run beside each other, each in a thread of its own."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SideBySide(Generic[Result]):
    """A bounded number of running calls, whose results are taken by the thread that began them."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._num_running = 0
        self._ended: queue.SimpleQueue[Future[Result]] = queue.SimpleQueue()

    @property
    def is_full(self) -> bool:
        """Whether a result must be taken before another call is begun."""
        return self._num_running >= self._at_once

    @property
    def is_busy(self) -> bool:
        """Whether there are results to take, now or later."""
        return self._num_running > 0

    def begin(self, call: Callable[[], Result]) -> None:
        """Runs a call; nobody waits for it where the process ends."""
        assert not self.is_full
        self._num_running += 1
        threading.Thread(target=self._run, args=(call,), name="headrace-chunk", daemon=True).start()

    def take(self) -> Result:
        """The result of the call that ends next, or has ended first; what it raised is raised."""
        assert self.is_busy
        future = self._ended.get()
        self._num_running -= 1
        return future.result()

    def _run(self, call: Callable[[], Result]) -> None:
        future = Future[Result]()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
            future.set_exception(error)
        self._ended.put(future)
