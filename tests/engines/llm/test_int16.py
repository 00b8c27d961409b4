"""Weights of 16 bits: nearly the texts of float32, on CPUs with the native kernels."""

import json
from pathlib import Path

import pytest

from headrace.engines import ConfigError, native
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.llm import LLM, EngineConfig, SamplingParams
from headrace.engines.llm.assembly import check_model
from tests.engines.llm.conftest import tiny_config

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_text())
NEAR_TIE = 0.02
is_built = pytest.mark.skipif(
    not native.is_available(native.LINEAR), reason="the native kernels are not built"
)


@is_built
def test_greedy_tokens_are_those_of_transformers_but_where_two_are_near(smollm2_checkpoint):
    """The golden tokens are of float32, with the gap between the two likeliest at each."""
    config = EngineConfig.of(
        dtype="float32", quantization="int16", max_num_seqs=32, max_model_len=1024, num_pages=1200
    )
    rows, params = GOLDEN["rows"], SamplingParams(max_tokens=GOLDEN["max_tokens"])
    with LLM(smollm2_checkpoint, config) as llm:
        outputs = llm.generate([row["prompt_token_ids"] for row in rows], params)
    num_same = num_all = 0
    for row, output in zip(rows, outputs, strict=True):
        ours, theirs = list(output.outputs[0].token_ids), row["token_ids"]
        pairs = zip(ours, theirs, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(theirs))
        assert first == len(theirs) or row["gaps"][first] < NEAR_TIE, f"{row['id']} differs at token {first}"
        num_same, num_all = num_same + first, num_all + len(theirs)
    assert num_same > 0.9 * num_all


@pytest.mark.parametrize("changes", [{"attention_backend": "xla"}, {"tensor_parallel_size": 2}])
def test_they_are_refused_where_no_kernel_multiplies_them(native_model, changes):
    config = tiny_config(quantization="int16", **changes)
    with pytest.raises(ConfigError, match="int16 weights are for the native kernels"):
        check_model(open_checkpoint(str(native_model)), config)
    with pytest.raises(ConfigError, match="int16 weights are for the native kernels"):
        LLM(str(native_model), config)
