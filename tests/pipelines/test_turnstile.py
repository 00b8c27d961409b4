"""Whose rows go into the engine next."""

import threading
from collections.abc import Callable

import pytest

from headrace.pipelines.turnstile import Turnstile


@pytest.fixture
def turnstile() -> Turnstile:
    return Turnstile()


def never() -> None:
    """A check that finds nothing."""


def enters(turnstile: Turnstile, action: Callable[[], None]) -> threading.Event:
    """An event that is set once the action, in a thread of its own, has come to its end."""
    done = threading.Event()
    threading.Thread(target=lambda: (action(), done.set()), daemon=True).start()
    return done


def test_a_chunk_waits_until_those_before_it_have_brought_their_rows(turnstile: Turnstile):
    with turnstile.turn(enough=2) as first:
        for _ in range(5):
            turnstile.enter(never, first)

        def bring() -> None:
            with turnstile.turn(enough=2) as second:
                turnstile.enter(never, second)

        done = enters(turnstile, bring)
        assert not done.wait(0.2)
    assert done.wait(5)


def test_a_chunk_need_not_wait_while_the_engine_has_little_to_do(turnstile: Turnstile):
    with turnstile.turn(enough=2) as first, turnstile.turn(enough=2) as second:
        turnstile.enter(never, first)
        turnstile.enter(never, second)
        done = enters(turnstile, lambda: turnstile.enter(never, second))
        assert not done.wait(0.2)
        turnstile.leave()
        assert done.wait(5)


def test_a_chunk_that_breaks_off_gives_its_turn_away(turnstile: Turnstile):
    def break_off() -> None:
        with turnstile.turn(enough=1) as first:
            turnstile.enter(never, first)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    with turnstile.turn(enough=1) as second:
        turnstile.enter(never, second)


def test_what_a_waiting_chunk_is_told_is_raised(turnstile: Turnstile):
    def stop() -> None:
        raise InterruptedError

    with turnstile.turn(enough=1) as first, turnstile.turn(enough=1) as second:
        turnstile.enter(stop, first)
        with pytest.raises(InterruptedError):
            turnstile.enter(stop, second)
