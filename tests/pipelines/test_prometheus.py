"""The worker's endpoint for Prometheus."""

import socket
import urllib.error
import urllib.request
from collections.abc import Mapping

import pytest

from headrace.pipelines.in_flight import IN_FLIGHT, Tally
from headrace.pipelines.prometheus import MetricsServer, exposition
from headrace.pipelines.resident import Resident


class CountingEngine:
    """What a resident needs of an engine, with a counter."""

    num_slots = 4

    def counters(self) -> Mapping[str, float]:
        return {"completion_tokens": 12.0, "load_s": 1.5, "draft_tokens": 8.0, "accepted_tokens": 6.0}

    def close(self) -> None:
        """Nothing is held."""


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return answer.read().decode()


def test_counters_and_rows_in_flight_can_be_scraped():
    resident = Resident(CountingEngine())
    server = MetricsServer()
    with socket.socket() as taken, IN_FLIGHT.part("an-output", "part-1") as add:
        taken.bind(("", 0))
        taken.listen()
        port = server.show(taken.getsockname()[1], resident, "an-output")
        assert port != taken.getsockname()[1]
        assert server.show(port, resident, "an-output") == port
        add(Tally(3, 1, 0.0))
        lines = get(port, "/metrics").splitlines()
        assert "headrace_engine_completion_tokens 12.0" in lines
        assert "headrace_engine_speculation_acceptance_rate 0.75" in lines
        assert "headrace_engine_slots 4.0" in lines
        assert "headrace_uncommitted_rows 3.0" in lines
        assert "headrace_uncommitted_rows_failed 1.0" in lines
        with pytest.raises(urllib.error.HTTPError):
            get(port, "/other")


def test_what_the_counters_grow_by_holds_no_ratio():
    resident = Resident(CountingEngine())
    assert resident.take_growth() == dict(CountingEngine().counters())
    assert set(resident.take_growth().values()) == {0.0}


def test_names_hold_what_prometheus_takes():
    assert exposition({"a-b.c": 1.0}) == "# TYPE headrace_a_b_c gauge\nheadrace_a_b_c 1.0\n"
