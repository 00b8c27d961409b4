"""The driver with a small engine of its own kind: it doubles numbers, one request a step."""

import threading
from dataclasses import dataclass

import pytest

from headrace.engines import Driver, EngineError, QueueFullError, RequestError


@dataclass(frozen=True)
class Double:
    request_id: str
    number: int


@dataclass(frozen=True)
class Doubled:
    request_id: str
    number: int
    finished: bool = True


class Doubler:
    """Refuses negative numbers, breaks on 13, waits while `gate` is closed."""

    def __init__(self) -> None:
        self.waiting: list[Double] = []
        self.gate = threading.Event()
        self.gate.set()

    def add(self, request: Double) -> None:
        if request.number < 0:
            raise RequestError("negative", kind="negative")
        self.waiting.append(request)

    def abort(self, request_id: str) -> None:
        self.waiting = [request for request in self.waiting if request.request_id != request_id]

    @property
    def num_used_slots(self) -> int:
        return len(self.waiting)

    def has_work(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Doubled]:
        assert self.gate.wait(10)
        request = self.waiting.pop(0)
        if request.number == 13:
            raise ArithmeticError("unlucky")
        return [Doubled(request.request_id, 2 * request.number)]


@pytest.fixture
def doubler() -> Doubler:
    return Doubler()


@pytest.fixture
def driver(doubler):
    driver = Driver(doubler, max_queue=5, name="doubler")
    driver.start()
    yield driver
    doubler.gate.set()
    driver.stop(drain=False)


def test_requests_from_many_threads_each_get_their_own_output(driver):
    results = {}

    def ask(thread: int) -> None:
        for index in range(50):
            name = f"{thread}-{index}"
            results[name] = driver.submit(Double(name, thread * 1000 + 20 + index)).result(10).number

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {f"{t}-{i}": 2 * (t * 1000 + 20 + i) for t in range(6) for i in range(50)}


def test_a_refused_request_fails_alone(driver):
    bad, good = driver.submit(Double("bad", -1)), driver.submit(Double("good", 4))
    with pytest.raises(RequestError, match="negative"):
        bad.result(10)
    assert good.result(10).number == 8


def test_an_id_in_use_is_refused(driver, doubler):
    doubler.gate.clear()
    first, second = driver.submit(Double("a", 1)), driver.submit(Double("a", 2))
    doubler.gate.set()
    assert first.result(10).number == 2
    with pytest.raises(RequestError, match="in use"):
        second.result(10)


def test_a_broken_engine_fails_every_request_and_takes_no_more(driver, doubler):
    doubler.gate.clear()
    futures = [driver.submit(Double(str(number), number)) for number in (13, 14)]
    doubler.gate.set()
    for future in futures:
        with pytest.raises(EngineError, match="unlucky"):
            future.result(10)
    with pytest.raises(EngineError):
        driver.submit(Double("late", 1))


def test_an_engine_that_breaks_in_add_fails_its_requests(driver):
    assert driver.submit(Double("a", 1)).result(10).number == 2
    with pytest.raises(EngineError, match="TypeError"):
        driver.submit(Double("b", "no number")).result(10)


def test_stop_without_drain_ends_what_is_unfinished(doubler):
    driver = Driver(doubler, name="stops")
    driver.start()
    doubler.gate.clear()
    futures = [driver.submit(Double(str(number), number)) for number in range(5)]
    threading.Timer(0.2, doubler.gate.set).start()
    driver.stop(drain=False)
    outcomes = [type(future.exception(0)) for future in futures]
    assert outcomes[-1] is EngineError
    assert set(outcomes) <= {EngineError, type(None)}


def test_submit_blocks_on_a_full_queue_and_can_give_up(driver, doubler):
    doubler.gate.clear()
    futures = [driver.submit(Double(str(number), number)) for number in range(5)]
    with pytest.raises(QueueFullError, match="max_queue"):
        driver.submit(Double("too many", 1), timeout_s=0.2)
    doubler.gate.set()
    assert [future.result(10).number for future in futures] == [0, 2, 4, 6, 8]
    assert driver.submit(Double("after", 9)).result(10).number == 18


def test_abort_ends_the_future_and_spares_the_rest(driver, doubler):
    doubler.gate.clear()
    first, second, third = (driver.submit(Double(name, 5)) for name in "abc")
    driver.abort("b")
    doubler.gate.set()
    assert first.result(10).number == third.result(10).number == 10
    with pytest.raises(RequestError, match="aborted"):
        second.result(10)


def test_stop_drains_what_was_submitted(doubler):
    driver = Driver(doubler, name="drains")
    driver.start()
    futures = [driver.submit(Double(str(number), number)) for number in range(10)]
    driver.stop()
    assert [future.result(0).number for future in futures] == [2 * number for number in range(10)]
    with pytest.raises(EngineError, match="stopped"):
        driver.submit(Double("late", 1))
