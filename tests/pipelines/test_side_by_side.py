"""Calls run beside each other, no more than are allowed, and what they raise is raised where it is taken."""

import threading

import pytest

from headrace.pipelines.side_by_side import SideBySide


def test_calls_run_at_once_and_are_taken_as_they_end():
    together = threading.Barrier(3)
    calls = SideBySide[int](3)
    for number in range(3):
        assert not calls.is_full
        calls.begin(lambda number=number: (together.wait(10), number)[1])
    assert calls.is_full
    assert {calls.take() for _ in range(3)} == {0, 1, 2}
    assert not calls.is_busy


def test_the_first_to_end_is_the_first_to_be_taken():
    gate = threading.Event()
    calls = SideBySide[str](2)
    calls.begin(lambda: "late" if gate.wait(10) else "never")
    calls.begin(lambda: "early")
    assert calls.take() == "early"
    gate.set()
    assert calls.take() == "late"


def test_what_a_call_raises_is_raised_where_it_is_taken_and_its_place_is_free_again():
    calls = SideBySide[int](1)
    calls.begin(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        calls.take()
    assert not calls.is_full
    calls.begin(lambda: 7)
    assert calls.take() == 7
