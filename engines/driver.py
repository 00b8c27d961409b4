"""One thread that owns an engine: requests in from any thread, outputs out as futures."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar, runtime_checkable

from headrace.engines.errors import EngineError, QueueFullError, RequestError

logger = logging.getLogger(__name__)


@runtime_checkable
class Request(Protocol):
    @property
    def request_id(self) -> str: ...


@runtime_checkable
class Output(Protocol):
    @property
    def request_id(self) -> str: ...


RequestT = TypeVar("RequestT", bound=Request)
OutputT = TypeVar("OutputT", bound=Output)


@runtime_checkable
class Engine(Protocol[RequestT, OutputT]):
    """What a driver owns. All methods are called from the driver's thread alone."""

    def add(self, request: RequestT) -> None:
        """Takes a request into the engine's waiting queue.

        Raises:
          RequestError: this request can never be served (the driver sets it on the future).
        """
        ...

    def step(self) -> list[OutputT]:
        """Runs one round of work and returns the outputs that it finished."""
        ...

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees what it held; an unknown id is not an error."""
        ...

    def has_work(self) -> bool: ...


class Driver(Generic[RequestT, OutputT]):
    """Owns an engine on a thread of its own.

    `submit` may be called from any thread and returns a future of the output. At most `max_queue` requests
    wait outside the engine, and the engine is handed no more than `max_inside` at a time, so that a million
    submitted rows never lie in memory: `submit` blocks instead.
    """

    def __init__(
        self, engine: Engine[RequestT, OutputT], *, max_queue: int = 1024, name: str = "engine"
    ) -> None:
        self._engine = engine
        self._inbox: queue.Queue[Callable[[], None]] = queue.Queue(maxsize=max_queue)
        self._futures: dict[str, Future[OutputT]] = {}
        self._thread = threading.Thread(target=self._run, name=f"headrace-{name}", daemon=True)
        self._state_lock = threading.Lock()
        self._stopping = False
        self._failure: EngineError | None = None

    def start(self) -> None:
        """Starts the thread; a second call does nothing."""
        with self._state_lock:
            if self._stopping:
                raise EngineError("the driver was stopped: make a new one")
            if not self._thread.is_alive():
                self._thread.start()

    def submit(self, request: RequestT, *, timeout_s: float | None = None) -> "Future[OutputT]":
        """A future of the request's output; blocks while the queue is full.

        The future raises RequestError where the engine refuses the request, EngineError where the engine
        fails. `future.cancel()` has no effect once the engine has the request: call `abort`.

        Raises:
          EngineError: the driver is stopped or has failed.
          QueueFullError: the queue stayed full for `timeout_s` seconds.
        """
        future: Future[OutputT] = Future()
        self._post(lambda: self._admit(request, future), timeout_s)
        return future

    def abort(self, request_id: str) -> None:
        """Drops a request; its future is cancelled unless it has finished before."""
        self._post(lambda: self._drop(request_id), None)

    def stop(self, *, drain: bool = True) -> None:
        """Ends the thread: after the work it has (`drain`), else at once with EngineError on the rest."""
        with self._state_lock:
            if self._stopping:
                return
            self._stopping = True
            started = self._thread.ident is not None
        if not started:
            return
        if not drain:
            self._fail(EngineError("the engine was stopped before this request was finished"))
        self._inbox.put(_wake)
        self._thread.join()

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine has and has not finished."""
        return len(self._futures)

    def _post(self, message: Callable[[], None], timeout_s: float | None) -> None:
        self._check_alive()
        while True:
            # Short waits, so that a caller never hangs on a queue that a dead engine no longer empties.
            wait_s = 1.0 if timeout_s is None else min(1.0, timeout_s)
            try:
                self._inbox.put(message, timeout=wait_s)
                break
            except queue.Full:
                self._check_alive()
                if timeout_s is not None:
                    timeout_s -= wait_s
                    if timeout_s <= 0:
                        raise QueueFullError(
                            f"the engine's queue of {self._inbox.maxsize} requests stayed full: "
                            "submit more slowly or raise max_queue"
                        ) from None
        if self._failure is not None:  # the engine failed between the check and the put
            self._flush_inbox()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping:
            raise EngineError("the driver is stopped: no further requests are taken")

    def _run(self) -> None:
        while self._failure is None:
            self._read_inbox(block=not self._engine.has_work())
            if self._failure is not None:
                break
            if not self._engine.has_work():
                if self._stopping and self._inbox.empty():
                    break
                continue
            try:
                outputs = self._engine.step()
            except Exception as error:
                logger.exception("the engine failed")
                self._fail(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
                break
            for output in outputs:
                self._futures.pop(output.request_id).set_result(output)
        self._flush_inbox()

    def _read_inbox(self, *, block: bool) -> None:
        if block and not (self._stopping and self._inbox.empty()):
            self._inbox.get()()
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _admit(self, request: RequestT, future: "Future[OutputT]") -> None:
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        if request.request_id in self._futures:
            future.set_exception(RequestError(f"request id in use: {request.request_id}", kind="duplicate"))
            return
        if not future.set_running_or_notify_cancel():
            return
        try:
            self._engine.add(request)
        except RequestError as error:
            future.set_exception(error)
            return
        self._futures[request.request_id] = future

    def _drop(self, request_id: str) -> None:
        future = self._futures.pop(request_id, None)
        if future is not None:
            self._engine.abort(request_id)
            future.set_exception(RequestError(f"request was aborted: {request_id}", kind="aborted"))

    def _fail(self, failure: EngineError) -> None:
        self._failure = failure
        while self._futures:
            _, future = self._futures.popitem()
            future.set_exception(failure)

    def _flush_inbox(self) -> None:
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            message()


def _wake() -> None:
    """Does nothing but wake a driver that waits for its inbox."""
