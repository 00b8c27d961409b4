"""Gemma 3 270M through its real GGUF, quantized to 4 to 8 bits a weight."""

import pytest

from headrace.engines.llm import LLM, EngineConfig, SamplingParams


@pytest.mark.slow
def test_gemma_3_goes_on_sensibly():
    config = EngineConfig.of(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256, num_pages=80)
    with LLM("demo:gemma3-270m", config) as llm:
        output = llm.generate("Water boils at a temperature of", SamplingParams(max_tokens=16))
    assert output.outputs[0].text.startswith(" 100 degrees Celsius.")
