"""Several engines of one model behind the face of one driver."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic

from headrace.engines.driver import Driver, OutputT, RequestT
from headrace.engines.errors import EngineError, QueueFullError


class ReplicatedDriver(Generic[RequestT, OutputT]):
    """Sends each request to the driver with the fewest unfinished ones; one that has failed gets no more."""

    def __init__(self, drivers: Sequence[Driver[RequestT, OutputT]]) -> None:
        self._drivers = list(drivers)
        self._lock = threading.Lock()
        self._places: dict[str, Driver[RequestT, OutputT]] = {}

    @property
    def driver_name(self) -> str:
        return f"{self._drivers[0].driver_name} x {len(self._drivers)}"

    @property
    def num_used_slots(self) -> int:
        """Rows that the engines work on at the moment."""
        return sum(driver.num_used_slots for driver in self._drivers)

    def get_total_concurrent_requests(self) -> int:
        """Requests that were submitted and are not finished."""
        return sum(driver.get_total_concurrent_requests() for driver in self._drivers)

    def start(self) -> None:
        """Starts every driver."""
        for driver in self._drivers:
            driver.start()

    def submit(
        self,
        request: RequestT,
        *,
        on_output: Callable[[OutputT], None] | None = None,
        timeout_s: float | None = None,
    ) -> "Future[OutputT]":
        """As `Driver.submit`, by the least-loaded driver.

        Raises:
          EngineError: every driver is stopped or has failed.
          QueueFullError: that driver's queue stayed full for `timeout_s` seconds.
        """
        failure: EngineError | None = None
        by_load = sorted(self._drivers, key=lambda driver: driver.get_total_concurrent_requests())
        for driver in by_load:
            try:
                future = driver.submit(request, on_output=on_output, timeout_s=timeout_s)
            except QueueFullError:
                raise  # the others are at least as full
            except EngineError as error:
                failure = error
                continue
            with self._lock:
                self._places[request.request_id] = driver
            future.add_done_callback(lambda _: self._forget(request.request_id))
            return future
        assert failure is not None
        raise failure

    def abort(self, request_id: str) -> None:
        """As `Driver.abort`; an id that is not known is not an error."""
        with self._lock:
            driver = self._places.get(request_id)
        if driver is not None:
            driver.abort(request_id)

    def stop(self, *, drain: bool = True) -> None:
        """Ends every driver's thread: after the work they have (`drain`), else at once."""
        threads = [
            threading.Thread(target=driver.stop, kwargs={"drain": drain}, name="headrace-stop")
            for driver in self._drivers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._places.pop(request_id, None)
