"""Outputs that come while the text grows."""

import asyncio
from dataclasses import replace

import pytest

from headrace.engines import EngineError
from headrace.engines.llm import LLM, SamplingParams, TextRequest
from tests.engines.llm.conftest import tiny_config

LONG = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=3)


def collect(stream) -> list:
    async def run():
        return [output async for output in stream]

    return asyncio.run(run())


@pytest.mark.parametrize("stop", ["", "7"])
def test_streamed_text_is_the_text(tiny_llm, stop):
    params = replace(LONG, stop=(stop or tiny_llm.generate("abc", LONG).outputs[0].text[12:14],))
    whole = tiny_llm.generate("abc", params).outputs[0]
    deltas = collect(tiny_llm.stream_generate("abc", params))
    assert "".join(output.outputs[0].text for output in deltas) == whole.text
    assert sum((output.outputs[0].token_ids for output in deltas), ()) == whole.token_ids
    cumulative = collect(tiny_llm.stream_generate("abc", params, output_kind="cumulative"))
    texts = [output.outputs[0].text for output in cumulative]
    assert texts[-1] == whole.text
    assert all(text == whole.text[: len(text)] for text in texts)
    for outputs in (deltas, cumulative):
        assert len(outputs) >= 2
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert outputs[-1].outputs[0].finish_reason == whole.finish_reason
        assert all(output.outputs[0].finish_reason is None for output in outputs[:-1])
        counts = [output.num_generated_tokens for output in outputs]
        assert counts == sorted(counts)
        assert counts[-1] == len(whole.token_ids)
        assert outputs[0].tokens_per_second is None
        seconds = outputs[-1].latency_s - outputs[-1].queue_s
        assert outputs[-1].tokens_per_second == pytest.approx(counts[-1] / seconds)
    final = collect(tiny_llm.stream_generate("abc", params, output_kind="final"))
    assert [output.outputs[0].text for output in final] == [whole.text]


def test_many_streams_at_once_do_not_mix(tiny_llm):
    prompts = [f"prompt {index}" for index in range(24)]
    params = [replace(LONG, seed=index) for index in range(24)]
    expected = [output.outputs[0].text for output in tiny_llm.generate(prompts, params)]

    async def read(prompt, own):
        return "".join([output.outputs[0].text async for output in tiny_llm.stream_generate(prompt, own)])

    async def run():
        return await asyncio.gather(*map(read, prompts, params))

    assert asyncio.run(run()) == expected


def test_leaving_a_stream_aborts_the_request_and_frees_its_pages(tiny_model):
    with LLM(str(tiny_model), tiny_config(max_model_len=512, decode_burst=1)) as llm:

        async def run():
            params = SamplingParams(max_tokens=450, ignore_eos=True)
            stream = llm.stream(TextRequest(prompt="abc", params=params, output_kind="delta"))
            async for _ in stream:
                break
            await stream.aclose()

        asyncio.run(run())
        llm.generate("ab", SamplingParams(max_tokens=1))
        assert not llm._engine.has_work()
        assert llm.metrics()["requests"] == 1


def test_a_bad_request_is_one_output_with_an_error_and_its_metadata(tiny_llm):
    request = TextRequest(prompt="", metadata={"row": 3}, output_kind="delta")
    (output,) = collect(tiny_llm.stream(request))
    assert output.error.kind == "prompt_empty"
    assert output.metadata == {"row": 3}


def test_a_stream_of_a_closed_engine_raises(tiny_model):
    llm = LLM(str(tiny_model), tiny_config())
    llm.close()
    with pytest.raises(EngineError):
        collect(llm.stream_generate("ab"))
