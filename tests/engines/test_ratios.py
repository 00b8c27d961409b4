"""Ratios are those of summed counters."""

import pytest

from headrace.engines.ratios import RATIOS, ratios, with_ratios

COUNTERS = {"draft_tokens": 80.0, "accepted_tokens": 60.0, "speculative_steps": 40.0, "requests": 3.0}


def test_what_was_accepted_is_told_as_a_rate_and_as_tokens_a_step():
    assert ratios(COUNTERS) == {"speculation_acceptance_rate": 0.75, "speculation_tokens_per_step": 2.5}
    assert with_ratios(COUNTERS) == {**COUNTERS, **ratios(COUNTERS)}
    assert set(ratios(COUNTERS)) <= set(RATIOS)


def test_nothing_is_told_of_what_was_not_counted():
    assert ratios({}) == ratios({"requests": 3.0}) == ratios(dict.fromkeys(COUNTERS, 0.0)) == {}
    # Steps in which nothing could be proposed made a token each.
    assert ratios({"speculative_steps": 5.0, "draft_tokens": 0.0, "accepted_tokens": 0.0}) == {
        "speculation_tokens_per_step": 1.0
    }


def test_ratios_of_two_engines_are_those_of_their_sums():
    other = {"draft_tokens": 20.0, "accepted_tokens": 0.0, "speculative_steps": 20.0}
    both = {name: value + other.get(name, 0.0) for name, value in COUNTERS.items()}
    assert ratios(both)["speculation_acceptance_rate"] == 0.6  # and neither 0.75 + 0 nor their mean
    assert ratios(both)["speculation_tokens_per_step"] == pytest.approx(2.0)
