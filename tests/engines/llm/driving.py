"""Engines of every configuration over one runner: its programs are compiled once."""

import time

from headrace.engines.errors import RequestError
from headrace.engines.llm import LLM, EngineConfig, RequestOutput, SamplingParams
from headrace.engines.llm.engine import LLMEngine
from headrace.engines.llm.prompts import TextRequest
from headrace.engines.llm.request import LLMRequest


def make_engine(llm: LLM, config: EngineConfig) -> LLMEngine:
    """An engine of its own scheduler and page pool over an LLM's weights, pages and programs."""
    assert config.cache.num_pages is not None
    return LLMEngine(
        llm._engine._runner,
        llm._tokenizer,
        config,
        num_pages=config.cache.num_pages,
        max_model_len=llm.max_model_len,
    )


def encode(llm: LLM, name: str, prompt: list[int], params: SamplingParams, priority: int = 0) -> LLMRequest:
    """A request as the engine takes it."""
    request = TextRequest(prompt=prompt, params=params, request_id=name, priority=priority)
    return llm._encoder.encode(request, name, time.monotonic())


def drive(engine: LLMEngine, requests: list[LLMRequest]) -> dict[str, RequestOutput]:
    """The outputs of requests by their ids; leaves the engine with every page free."""
    free = engine._scheduler._pool.num_free
    for request in requests:
        engine.add(request)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_work():
        for output in engine.step():
            assert output.request_id not in outputs, "a request was answered twice"
            outputs[output.request_id] = output
    assert engine._scheduler._pool.num_free == free
    return outputs


def is_refused(engine: LLMEngine, request: LLMRequest) -> bool:
    """Adds a request; whether the engine refused it."""
    try:
        engine.add(request)
    except RequestError:
        return True
    return False
