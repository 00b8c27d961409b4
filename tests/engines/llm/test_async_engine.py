"""The engine for asyncio: outputs in order, events as they come, and replicas behind one driver."""

import asyncio

import pytest

from headrace.engines import QueueFullError
from headrace.engines.errors import RowError
from headrace.engines.llm import LLM, AsyncEngine, SamplingParams, TextRequest
from tests.engines.llm.conftest import tiny_config

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
PROMPTS = ["one", "two", "", "four", "five"]


@pytest.fixture(scope="module")
def engine(tiny_llm) -> AsyncEngine:
    return AsyncEngine(tiny_llm)


def texts(outputs) -> list[str]:
    return [output.text for output in outputs]


def test_outputs_come_in_the_order_of_the_prompts(engine, tiny_llm):
    expected = texts(tiny_llm.generate(PROMPTS, PARAMS))
    assert texts(asyncio.run(engine.generate(PROMPTS, PARAMS))) == expected
    assert asyncio.run(engine.generate("one", PARAMS)).text == expected[0]
    for width in (-1, 0, 1, 3):
        outputs = asyncio.run(engine.generate_concurrently(PROMPTS, PARAMS, max_concurrent=width))
        assert texts(outputs) == expected
        assert [output.error is None for output in outputs] == [True, True, False, True, True]


def test_programs_are_compiled_while_other_tasks_go_on(tiny_model):
    async def run(engine: AsyncEngine):
        compiling = asyncio.ensure_future(engine.compile(num_seqs=8))
        output = await engine.generate("one", PARAMS)
        return await compiling, output

    with LLM(str(tiny_model), tiny_config(deterministic=True, strict_shapes=True)) as llm:
        compiled, output = asyncio.run(run(AsyncEngine(llm)))
        assert output.error is None
        assert compiled in (["decode of 8"], [])  # or the prompt was there first
        assert asyncio.run(AsyncEngine(llm).compile(num_seqs=8)) == []


def test_progress_is_told_after_each_prompt(engine):
    seen = []
    asyncio.run(
        engine.generate_concurrently(
            PROMPTS,
            PARAMS,
            max_concurrent=2,
            progress_callback=lambda done, total: seen.append((done, total)),
        )
    )
    assert seen == [(done, 5) for done in range(1, 6)]


def test_events_hold_each_text_as_it_grows(engine, tiny_llm):
    async def run():
        return [event async for event in engine.generate_concurrently(PROMPTS, PARAMS, stream=True)]

    events = asyncio.run(run())
    expected = tiny_llm.generate(PROMPTS, PARAMS)
    for index, output in enumerate(expected):
        own = [event for event in events if event.index == index]
        if output.error is not None:
            assert [(event.kind, type(event.data)) for event in own] == [("error", RowError)]
            continue
        assert "".join(event.data for event in own if event.kind == "text") == output.text
        assert own[-1].kind == "final"
        assert own[-1].data.outputs[0].token_ids == output.outputs[0].token_ids


def test_one_prompt_and_a_list_may_be_streamed(engine, tiny_llm):
    async def run(prompts):
        return [output async for output in engine.generate(prompts, PARAMS, stream=True)]

    one, two = tiny_llm.generate(["one", "two"], PARAMS)
    assert asyncio.run(run("one"))[-1].text == one.text
    assert texts(asyncio.run(run(["one", "two"]))[-1]) == [one.text, two.text]


def test_wrong_calls_are_told_apart(engine):
    with pytest.raises(TypeError, match="TextRequest"):
        engine.complete("one")
    with pytest.raises(ValueError, match="5 prompts and 2"):
        engine.generate_concurrently(PROMPTS, [PARAMS, PARAMS])
    with pytest.raises(ValueError, match="5 prompts and 2"):
        engine.generate(PROMPTS, [PARAMS, PARAMS])


def test_a_full_queue_raises_where_the_caller_does_not_wait(engine):
    room = engine.llm.driver._room
    taken = [room.acquire(blocking=False) for _ in range(4096)]
    assert all(taken)

    async def run():
        async for _ in engine.complete(TextRequest(prompt="one"), timeout_s=0.0):
            pass

    try:
        with pytest.raises(QueueFullError):
            asyncio.run(run())
    finally:
        room.release(len(taken))


def test_the_engine_tells_what_it_has(engine):
    assert engine.driver_name == "llm"
    assert engine.count_tokens("abc") == 3
    assert engine.processor is engine.llm.processor
    assert (engine.num_used_slots, engine.get_total_concurrent_requests()) == (0, 0)


def test_replicas_share_the_requests_and_give_the_same_texts(tiny_model, tiny_llm):
    prompts = [f"prompt {index}" for index in range(12)]
    with LLM(str(tiny_model), tiny_config(deterministic=True), num_replicas=2) as llm:
        assert texts(llm.generate(prompts, PARAMS)) == texts(tiny_llm.generate(prompts, PARAMS))
        each = [engine.counters()["requests"] for engine in llm._engines]
        assert sum(each) == llm.metrics()["requests"] == 12
        assert min(each) >= 4
        assert llm.driver.get_total_concurrent_requests() == 0
