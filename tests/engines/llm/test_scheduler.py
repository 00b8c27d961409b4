"""The scheduler alone: which rows, in which order, with which pages. Tokens are made up here."""

import random

import pytest

from headrace.engines.errors import QueueFullError, RequestError
from headrace.engines.llm import EngineConfig, SamplingParams
from headrace.engines.llm.batch import DecodeBatch, PrefillBatch
from headrace.engines.llm.page_pool import PagePool
from headrace.engines.llm.request import LLMRequest
from headrace.engines.llm.scheduler import Scheduler
from headrace.engines.llm.shapes import choose_shapes

PAGE = 16
MAX_LEN = 256


def make_scheduler(num_pages=100, **options) -> Scheduler:
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "decode_burst": 4, "look_ahead": 1} | options
    config = EngineConfig.of(**options)
    return Scheduler(config, PagePool(num_pages, PAGE), MAX_LEN, choose_shapes(config, MAX_LEN))


def request(name, prompt, max_tokens=4, priority=0) -> LLMRequest:
    tokens = tuple(prompt) if not isinstance(prompt, int) else tuple(range(1000, 1000 + prompt))
    params = SamplingParams(max_tokens=max_tokens)
    return LLMRequest(
        request_id=str(name),
        prompt_token_ids=tokens,
        params=params,
        seed=0,
        priority=priority,
        submit_time_s=0.0,
    )


def own(name, length):
    """A prompt that shares no page with another's."""
    return [int(name) * 7 + 1] * length


def settle(scheduler, batch):
    """What an engine does with a batch: every row gets its tokens, and ends at its limit."""
    scheduler.land(batch)
    for row, sequence in enumerate(batch.sequences):
        if sequence.is_finished or (isinstance(batch, PrefillBatch) and not batch.is_last[row]):
            continue
        if isinstance(batch, DecodeBatch):
            count = min(batch.max_steps, sequence.max_total - sequence.num_computed - 1)
            sequence.num_computed += count
        new = sequence.num_computed + 1 - len(sequence.tokens)
        sequence.tokens.extend([5] * new)
        if sequence.num_remaining == 0:
            scheduler.finish(sequence)


def run(scheduler, max_steps=2000):
    """Ids in the order in which rows were first worked on; runs until all is done."""
    order, in_flight = [], []
    for _ in range(max_steps):
        batch = scheduler.next_batch() if len(in_flight) < 2 else None
        if batch is not None:
            scheduler.launch(batch)
            in_flight.append(batch)
            order += [each.request.request_id for each in batch.sequences]
        elif in_flight:
            settle(scheduler, in_flight.pop(0))
        else:
            assert not scheduler.has_work(), "nothing in flight, and nothing to launch"
            return list(dict.fromkeys(order))
    raise AssertionError("the scheduler does not come to an end")


def test_rows_come_in_their_order_or_in_that_of_their_priority():
    for policy, expected in [("fcfs", ["0", "1", "2", "3"]), ("priority", ["3", "1", "0", "2"])]:
        scheduler = make_scheduler(policy=policy, max_concurrent_prefill=1)
        for name, priority in enumerate([5, 2, 9, 1]):
            scheduler.add(request(name, own(name, 20), priority=priority))
        assert run(scheduler) == expected


def test_prompts_that_begin_alike_come_together_and_long_ones_first():
    scheduler = make_scheduler(look_ahead=8, max_concurrent_prefill=1)
    beginning = [9] * PAGE
    prompts = [own(0, 20), beginning + own(1, 9), own(2, 60), own(3, 5), beginning + own(4, 3), own(5, 40)]
    for name, prompt in enumerate(prompts):
        scheduler.add(request(name, prompt))
    assert run(scheduler) == ["1", "4", "2", "5", "0", "3"]


def test_a_beginning_that_two_rows_share_is_computed_once():
    scheduler = make_scheduler(look_ahead=8)
    for name in range(3):
        scheduler.add(request(name, [9] * 40 + own(name, 4)))
    first = scheduler.next_batch()
    assert first.lengths == [44]
    scheduler.launch(first)
    assert scheduler.next_batch().lengths == [12, 12]  # two full pages are shared


def test_a_row_that_does_not_fit_is_passed_but_not_for_ever():
    scheduler = make_scheduler(num_pages=14, look_ahead=64, look_past=3, max_num_batched_tokens=512)
    scheduler.add(request("first", own(99, 6 * PAGE), max_tokens=60))
    run_one(scheduler)
    scheduler.add(request("big", own(90, 9 * PAGE), max_tokens=2))
    for name in range(8):
        scheduler.add(request(name, own(name, 5), max_tokens=60))
    batch = scheduler.next_batch()
    small = [each.request.request_id for each in batch.sequences]
    assert "big" not in small
    big = next(each for each in scheduler._waiting if each.request.request_id == "big")
    assert 1 <= big.num_passed <= 3
    scheduler.launch(batch)
    settle(scheduler, batch)
    assert "big" in run(scheduler)


def run_one(scheduler):
    batch = scheduler.next_batch()
    scheduler.launch(batch)
    settle(scheduler, batch)


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({}, [64]),
        ({"prefill_chunk_size": 24}, [24]),
        ({"long_prefill_token_threshold": 40}, [40]),
        ({"long_prefill_token_threshold": 200}, [64]),
        ({"chunked_prefill_enabled": False}, [150]),
    ],
)
def test_a_long_prompt_is_cut_as_configured(options, lengths):
    scheduler = make_scheduler(**options)
    scheduler.add(request("a", 150))
    assert scheduler.next_batch().lengths == lengths


def test_chunks_of_one_prompt_are_launched_behind_each_other_and_the_decode_waits():
    scheduler = make_scheduler()
    scheduler.add(request("a", 100))
    first = scheduler.next_batch()
    scheduler.launch(first)
    second = scheduler.next_batch()
    assert (first.lengths, first.is_last, second.lengths, second.is_last) == ([64], [False], [36], [True])
    scheduler.launch(second)
    assert scheduler.next_batch() is None
    settle(scheduler, first)
    settle(scheduler, second)
    assert isinstance(scheduler.next_batch(), DecodeBatch)


def test_decoding_rows_take_the_places_of_a_prefill_that_are_padding_else():
    for deterministic, expected in [(False, ["b", "a"]), (True, ["b"])]:
        scheduler = make_scheduler(deterministic=deterministic)
        scheduler.add(request("a", own(1, 20)))
        run_one(scheduler)
        scheduler.add(request("b", own(2, 20)))
        batch = scheduler.next_batch()
        assert [each.request.request_id for each in batch.sequences] == expected


def test_the_worst_row_is_preempted_and_comes_back_first():
    for policy, expected in [("fcfs", "2"), ("priority", "1")]:
        scheduler = make_scheduler(num_pages=8, policy=policy, token_safety_margin=0, spare_page_share=0.0)
        for name, priority in enumerate([0, 9, 1]):
            scheduler.add(request(name, own(name, 30), max_tokens=60, priority=priority))
        while scheduler.num_preemptions == 0:
            run_one(scheduler)
        assert [each.request.request_id for each in scheduler._waiting] == [expected]
        run(scheduler)
        assert scheduler._pool.num_free == 7


def test_spare_pages_are_left_to_the_rows_that_run():
    for options, expected in [({"spare_page_share": 0.0}, 2), ({"spare_page_share": 0.6}, 1)]:
        scheduler = make_scheduler(num_pages=11, token_safety_margin=0, max_concurrent_prefill=1, **options)
        for name in range(2):
            scheduler.add(request(name, own(name, 60), max_tokens=20))
        run_one(scheduler)
        run_one(scheduler)
        assert len(scheduler._running) == expected


def test_rows_that_can_never_run_and_rows_too_many_are_refused():
    scheduler = make_scheduler(num_pages=9, max_waiting=2)
    for prompt, kind in [(0, "prompt_empty"), (MAX_LEN, "prompt_too_long"), (125, "prompt_too_long")]:
        with pytest.raises(RequestError) as caught:
            scheduler.add(request("a", prompt))
        assert caught.value.kind == kind
    for name in range(2):
        scheduler.add(request(name, 10))
    with pytest.raises(QueueFullError, match="max_waiting"):
        scheduler.add(request("c", 10))


@pytest.mark.parametrize("seed", range(20))
def test_random_work_ends_with_every_page_free(seed):
    rng = random.Random(seed)
    for _ in range(10):
        scheduler = make_scheduler(
            num_pages=rng.choice([9, 20, 100]),
            policy=rng.choice(["fcfs", "priority"]),
            look_ahead=rng.choice([1, 7]),
            look_past=rng.choice([0, 2]),
            enable_prefix_caching=rng.random() < 0.5,
            deterministic=rng.random() < 0.5,
            chunked_prefill_enabled=rng.random() < 0.7,
            prefill_chunk_size=rng.choice([None, 10]),
        )
        free = scheduler._pool.num_free
        in_flight, names = [], []
        for name in range(rng.randrange(1, 40)):
            beginning = [rng.randrange(2)] * rng.choice([0, PAGE, 40])
            prompt = beginning + own(name, rng.choice([1, 15, 16, 17, 50]))
            scheduler.add(request(name, prompt, rng.randrange(1, 30), rng.randrange(3)))
            names.append(name)
            for _ in range(rng.randrange(3)):
                batch = scheduler.next_batch() if len(in_flight) < 2 else None
                if batch is not None:
                    scheduler.launch(batch)
                    in_flight.append(batch)
                elif in_flight:
                    settle(scheduler, in_flight.pop(0))
            if rng.random() < 0.2:
                scheduler.abort(str(rng.choice(names)))
        for batch in in_flight:
            settle(scheduler, batch)
        run(scheduler)
        assert scheduler._pool.num_free == free
