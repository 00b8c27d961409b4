"""Engines without a checkpoint's weights."""

import shutil

import jax
import pytest
from flax import nnx

from headrace.engines import ModelError, native
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.llm import LLM, SamplingParams
from headrace.engines.llm.assembly import load_weights
from headrace.engines.llm.families import read_model_config
from tests.engines.llm.conftest import GOLDEN, tiny_config

is_built = pytest.mark.skipif(
    not native.is_available(native.LINEAR), reason="the native kernels are not built"
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        pytest.param({"quantization": "int16"}, marks=is_built),
    ],
)
def test_random_weights_have_the_shapes_of_those_that_are_read(changes):
    checkpoint = open_checkpoint(str(GOLDEN / "gqa"))
    model = read_model_config(checkpoint.config)
    read, made = (
        nnx.state(load_weights(checkpoint, model, tiny_config(use_random_weights=is_random, **changes)))
        for is_random in (False, True)
    )
    assert jax.tree.map(_shape, read) == jax.tree.map(_shape, made)


def _shape(array) -> tuple:
    return array.shape, array.dtype


def test_a_config_without_weights_runs(tiny_model, tmp_path):
    for path in tiny_model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path)
    with pytest.raises(ModelError, match="no model in"):
        LLM(str(tmp_path), tiny_config())
    config = tiny_config(use_random_weights=True, deterministic=True)
    with LLM(str(tmp_path), config, hf_overrides={"num_hidden_layers": 3}) as llm:
        assert llm.model_config.num_layers == 3
        outputs = llm.generate(["ab", "cd"], SamplingParams(max_tokens=8, ignore_eos=True))
        assert [len(output.outputs[0].token_ids) for output in outputs] == [8, 8]
