"""Weights that are swapped while the engine stays."""

import numpy as np
import pytest

from headrace.engines import EngineError, ModelError
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import tiny_config

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)
PROMPT = [50, 51, 52] * 20
NAME = "model.layers.0.self_attn.k_proj.weight"


def tokens(llm):
    return llm.generate([PROMPT], PARAMS)[0].outputs[0].token_ids


def test_new_weights_are_used_at_once_and_nothing_is_compiled_for_them(tiny_model):
    with LLM(str(tiny_model), tiny_config(deterministic=True, aot=False)) as llm:
        old = open_checkpoint(str(tiny_model)).tensor(NAME)
        before, compiles = tokens(llm), llm.metrics()["compiles"]
        llm.update_weights({NAME: -3 * old})
        changed = tokens(llm)
        assert changed != before
        assert llm.metrics()["cached_tokens"] == 0
        llm.update_weights({NAME: np.asarray(old, np.float64)})
        assert tokens(llm) == before
        llm.update_weights({NAME: -3 * old})
        assert tokens(llm) == changed
        llm.update_weights(str(tiny_model))
        assert tokens(llm) == before
        assert llm.metrics()["cached_tokens"] == 0
        assert tokens(llm) == before
        assert llm.metrics()["cached_tokens"] > 0
        assert llm.metrics()["compiles"] == compiles


def test_weights_that_do_not_fit_or_come_too_early_are_refused(tiny_llm):
    for weights, words in [
        ({}, "no weights"),
        ({NAME: np.zeros((2, 3), np.float32)}, r"shape \(2, 3\)"),
        ({"model.layers.9.x": np.zeros(1, np.float32)}, "no tensor"),
    ]:
        with pytest.raises(ModelError, match=words):
            tiny_llm.update_weights(weights)
    long = SamplingParams(max_tokens=230, ignore_eos=True)
    future = tiny_llm.submit([50] * 20, long, request_id="long")
    with pytest.raises(EngineError, match="unfinished"):
        tiny_llm.update_weights({NAME: open_checkpoint(tiny_llm._checkpoint.model).tensor(NAME)})
    assert future.result(timeout=300).error is None
