"""One thread that owns an engine: requests in from any thread, outputs out as futures."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from headrace.engines.errors import EngineError, QueueFullError, RequestError

logger = logging.getLogger(__name__)

_POLL_S = 1.0


@runtime_checkable
class Request(Protocol):
    @property
    def request_id(self) -> str: ...


@runtime_checkable
class Output(Protocol):
    @property
    def request_id(self) -> str: ...

    @property
    def finished(self) -> bool:
        """Whether it is the request's last output."""
        ...


RequestT = TypeVar("RequestT", bound=Request)
RequestT_contra = TypeVar("RequestT_contra", bound=Request, contravariant=True)
ResultT = TypeVar("ResultT")
OutputT = TypeVar("OutputT", bound=Output)


@runtime_checkable
class Engine(Protocol[RequestT_contra, OutputT]):
    """What a driver owns. All methods are called from the driver's thread alone."""

    def add(self, request: RequestT_contra) -> None:
        """Takes a request into the engine's waiting queue.

        Raises:
          RequestError: this request can never be served (the driver sets it on the future).
        """
        ...

    def step(self) -> list[OutputT]:
        """Runs one round of work and returns the outputs that it made, whole or growing ones."""
        ...

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees what it held; an unknown id is not an error."""
        ...

    def has_work(self) -> bool: ...

    @property
    def num_used_slots(self) -> int:
        """Rows under way; read from any thread."""
        ...


class Driver(Generic[RequestT, OutputT]):
    """Owns an engine on a thread of its own.

    `submit` may be called from any thread and returns a future of the output; it blocks while `max_queue`
    requests are unfinished, so that a million rows never lie in the engine's hands.
    """

    def __init__(
        self, engine: Engine[RequestT, OutputT], *, max_queue: int = 4096, name: str = "engine"
    ) -> None:
        self._engine = engine
        self._max_queue = max_queue
        self._room = threading.BoundedSemaphore(max_queue)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._listeners: dict[str, _Listener[OutputT]] = {}
        self._num_unfinished = 0
        self.driver_name = name
        """Name of the thread, after `headrace-`."""
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

    def submit(
        self,
        request: RequestT,
        *,
        on_output: Callable[[OutputT], None] | None = None,
        timeout_s: float | None = None,
    ) -> "Future[OutputT]":
        """A future of the request's last output; blocks while the queue is full.

        `on_output` gets those before it, in order, on the driver's thread: it must not block. Where it
        raises, the request is dropped and the future raises the same.

        The future raises RequestError where the engine refuses the request, EngineError where the engine
        fails. `future.cancel()` has no effect once the engine has the request: call `abort`.

        Raises:
          EngineError: the driver is stopped or has failed.
          QueueFullError: the queue stayed full for `timeout_s` seconds.
        """
        self._wait_for_room(timeout_s)
        future: Future[OutputT] = Future()
        with self._state_lock:
            self._num_unfinished += 1
        future.add_done_callback(lambda _: self._count_finished())
        self._post(lambda: self._admit(request, _Listener(future, on_output)))
        return future

    @property
    def num_used_slots(self) -> int:
        """Rows that the engine works on at the moment."""
        return self._engine.num_used_slots

    def get_total_concurrent_requests(self) -> int:
        """Requests that were submitted and are not finished."""
        return self._num_unfinished

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """What a function returns that runs on the engine's thread, between two steps.

        Raises:
          EngineError: the driver is stopped or has failed.
          Exception: whatever the function raises; the engine goes on.
        """
        self._check_alive()
        future: Future[ResultT] = Future()
        self._post(lambda: _run_into(future, function))
        return future.result()

    def abort(self, request_id: str) -> None:
        """Drops a request; its future raises RequestError of kind `aborted` unless it has finished before."""
        self._check_alive()
        reason = RequestError(f"request was aborted: {request_id}", kind="aborted")
        self._post(lambda: self._drop(request_id, reason))

    def wake(self) -> None:
        """Makes the engine look again whether it has work: something that a request waited for has come."""
        self._post(_wake)

    def stop(self, *, drain: bool = True) -> None:
        """Ends the thread: after the work it has (`drain`), else at once with EngineError on the rest."""
        with self._state_lock:
            if self._stopping:
                return
            self._stopping = True
            started = self._thread.ident is not None
        if not started:
            return
        stopped = EngineError("the engine was stopped before this request was finished")
        self._inbox.put(_wake if drain else lambda: self._fail(stopped))
        self._thread.join()

    def _wait_for_room(self, timeout_s: float | None) -> None:
        self._check_alive()
        wait_s = _POLL_S if timeout_s is None else min(_POLL_S, timeout_s)
        # Short waits, so that nobody waits for ever on an engine that has died.
        while not self._room.acquire(timeout=wait_s):
            self._check_alive()
            if timeout_s is not None:
                timeout_s -= wait_s
                if timeout_s <= 0:
                    raise QueueFullError(
                        f"{self._max_queue} requests were unfinished all the time: "
                        "submit more slowly or raise max_queue"
                    )

    def _count_finished(self) -> None:
        with self._state_lock:
            self._num_unfinished -= 1
        self._room.release()

    def _post(self, message: Callable[[], None]) -> None:
        self._inbox.put(message)
        if self._failure is not None:  # the thread may have ended before it saw the message
            self._flush_inbox()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping:
            raise EngineError("the driver is stopped: no further requests are taken")

    def _run(self) -> None:
        try:
            while self._failure is None:
                self._read_inbox(block=not self._engine.has_work())
                if self._failure is None and self._engine.has_work():
                    for output in self._engine.step():
                        self._hand_out(output)
                elif self._stopping and self._inbox.empty():
                    self._fail(EngineError("the driver is stopped: no further requests are taken"))
        except Exception as error:
            logger.exception("the engine failed")
            self._fail(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
        self._flush_inbox()

    def _read_inbox(self, *, block: bool) -> None:
        if block and not (self._stopping and self._inbox.empty()):
            self._inbox.get()()
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _admit(self, request: RequestT, listener: "_Listener[OutputT]") -> None:
        future = listener.future
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        if request.request_id in self._listeners:
            future.set_exception(RequestError(f"request id in use: {request.request_id}", kind="duplicate"))
            return
        if not future.set_running_or_notify_cancel():
            return
        self._listeners[request.request_id] = listener
        try:
            self._engine.add(request)
        except RequestError as error:
            self._listeners.pop(request.request_id).future.set_exception(error)

    def _hand_out(self, output: OutputT) -> None:
        listener = self._listeners.get(output.request_id)
        if listener is None:  # a growing output of a request whose listener has just failed
            return
        if output.finished:
            self._listeners.pop(output.request_id).future.set_result(output)
        elif listener.on_output is not None:
            try:
                listener.on_output(output)
            except Exception as error:  # noqa: BLE001 - a listener's fault is its own request's alone
                self._drop(output.request_id, error)

    def _drop(self, request_id: str, reason: Exception) -> None:
        listener = self._listeners.pop(request_id, None)
        if listener is not None:
            self._engine.abort(request_id)
            listener.future.set_exception(reason)

    def _fail(self, failure: EngineError) -> None:
        self._failure = failure
        while self._listeners:
            _, listener = self._listeners.popitem()
            listener.future.set_exception(failure)

    def _flush_inbox(self) -> None:
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            message()


class _Listener(NamedTuple, Generic[OutputT]):
    future: "Future[OutputT]"
    on_output: Callable[[OutputT], None] | None


def _run_into(future: "Future[ResultT]", function: Callable[[], ResultT]) -> None:
    try:
        future.set_result(function())
    except Exception as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)


def _wake() -> None:
    """Does nothing but wake a driver that waits for its inbox."""
