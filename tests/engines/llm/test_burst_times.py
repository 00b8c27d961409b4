"""Bursts with and without proposals, and what both take, on a clock of the test's own."""

import pytest

from headrace.engines.llm import SamplingParams, burst_times
from headrace.engines.llm.batch import DecodeBatch, PrefillBatch
from headrace.engines.llm.burst_times import BURSTS_BEFORE, BurstTimes
from headrace.engines.llm.request import LLMRequest, Sequence
from headrace.engines.ratios import ratios


class Clock:
    """Bursts that take as long as the test says."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(burst_times, "time", clock)
    return clock


def rows(count: int) -> list[Sequence]:
    request = LLMRequest(
        request_id="a", prompt_token_ids=(1,), params=SamplingParams(), seed=0, submit_time_s=0.0
    )
    return [Sequence(request=request, tokens=[1], max_total=8) for _ in range(count)]


def is_speculative(times: BurstTimes, num_rows: int, *, num_programs: int = 0, is_ready: bool = True) -> bool:
    """Whether the burst that comes next has proposals."""
    batch = DecodeBatch(rows(num_rows), 8, 1, is_speculative=True)
    launched = times.launch(batch, num_programs, lambda batch: is_ready)
    assert isinstance(launched, DecodeBatch)
    return launched.is_speculative


def run(times: BurstTimes, clock: Clock, num_rows: int, seconds: dict[bool, float]) -> list[bool]:
    """Which of 22 bursts of 8 tokens a row have proposals; `seconds` are of one with, and of one without."""
    kinds = []
    for _ in range(22):
        kinds.append(is_speculative(times, num_rows))
        clock.now += seconds[kinds[-1]]
        times.land(8 * num_rows, 0)
    return kinds


def test_the_speed_up_is_that_over_bursts_of_as_many_rows(clock):
    times = BurstTimes(8)
    kinds = run(times, clock, 1, {True: 1.0, False: 3.0})
    assert [place for place, kind in enumerate(kinds) if not kind] == [4, 12, 20]
    assert (times.speculative_s, times.without_s) == (15.0, 45.0)  # the first four had no comparison
    run(times, clock, 2, {True: 2.0, False: 1.0})
    counters = {"speculative_s": times.speculative_s, "without_speculation_s": times.without_s}
    assert ratios(counters) == {"speculation_speed_up": (45.0 + 15.0) / (15.0 + 30.0)}


def test_tokens_count_and_not_bursts(clock):
    times = BurstTimes(8)
    run(times, clock, 1, {True: 1.0, False: 1.0})
    before = times.without_s
    assert is_speculative(times, 1)
    clock.now += 1.0
    times.land(2, 0)
    assert times.without_s - before == 0.25


def test_a_burst_that_was_disturbed_is_not_counted(clock):
    times = BurstTimes(8)
    run(times, clock, 1, {True: 1.0, False: 1.0})
    before = times.speculative_s
    assert is_speculative(times, 1, num_programs=3)
    clock.now += 9.0
    times.land(8, 4)  # a program was compiled meanwhile
    assert is_speculative(times, 1)
    times.launch(PrefillBatch(rows(1), [1], [True]), 4, lambda batch: True)
    clock.now += 9.0
    times.land(8, 4)
    times.land(1, 4)
    assert times.speculative_s == before
    # A burst without proposals that was not timed is made up for soon.
    times = BurstTimes(100)
    kinds = [is_speculative(times, 1) for _ in range(2 * BURSTS_BEFORE + 2)]
    assert kinds.count(False) == 2


def test_there_is_no_comparison_where_none_is_wanted_or_possible(clock):
    assert all(run(BurstTimes(0), clock, 1, {True: 1.0, False: 1.0}))
    times = BurstTimes(8)
    assert all(is_speculative(times, 1, is_ready=False) for _ in range(20))
    assert not is_speculative(times, 1)
    plain = DecodeBatch(rows(1), 8, 1)
    assert times.launch(plain, 0, lambda batch: True) is plain
    clock.now += 1.0
    times.land(8, 0)
    assert (times.speculative_s, times.without_s) == (0.0, 0.0)
