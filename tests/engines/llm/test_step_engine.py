"""An engine that its caller drives step by step."""

import jax
import pytest

from headrace.engines import RequestError
from headrace.engines.llm import LLM, SamplingParams, StepEngine, TextRequest
from tests.engines.llm.conftest import tiny_config


def test_a_caller_adds_steps_aborts_and_frees(tiny_model, tiny_llm):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    expected = tiny_llm.generate([[50] * 20, [60] * 33], params)
    bytes_before = sum(array.nbytes for array in jax.live_arrays())
    engine = StepEngine(str(tiny_model), tiny_config(deterministic=True))
    num_free = engine.num_free_pages
    first = engine.add([50] * 20, {"max_tokens": 20, "ignore_eos": True})
    engine.add(TextRequest(prompt=[60] * 33, params=params, request_id="second"))
    gone = engine.add([70] * 40, params)
    with pytest.raises(RequestError, match="in use: second"):
        engine.add(TextRequest(prompt=[1], request_id="second"))
    with pytest.raises(RequestError, match="empty"):
        engine.add([])
    outputs = {}
    is_aborted = False
    while engine.has_work():
        outputs |= {output.request_id: output for output in engine.step()}
        if not is_aborted:
            assert engine.num_free_pages < num_free
            engine.abort(gone)
            is_aborted = True
    assert [outputs[name].text for name in (first, "second")] == [output.text for output in expected]
    assert gone not in outputs
    assert engine.num_free_pages == num_free
    assert engine.metrics()["requests"] == 2
    assert engine.add(TextRequest(prompt=[60], params=params, request_id="second")) == "second"
    engine.abort("second")
    engine.free()
    assert sum(array.nbytes for array in jax.live_arrays()) - bytes_before < 100_000


def test_a_closed_llm_has_given_its_memory_back(tiny_model):
    bytes_before = sum(array.nbytes for array in jax.live_arrays())
    with LLM(str(tiny_model), tiny_config(num_pages=2000)) as llm:
        llm.generate([[50] * 20], SamplingParams(max_tokens=2))
        assert sum(array.nbytes for array in jax.live_arrays()) - bytes_before > 10_000_000
    assert sum(array.nbytes for array in jax.live_arrays()) - bytes_before < 100_000
