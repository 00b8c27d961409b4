"""A mixture of experts: a router picks a few of many MLPs for each token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from headrace.engines.llm.config import Activation, ExpertsConfig, ModelConfig
from headrace.engines.llm.layers import (
    ACTIVATIONS,
    Inputs,
    Linear,
    Onto,
    Precision,
    split_by_shard,
    values_of,
)

MIN_BLOCK, MAX_BLOCK = 16, 128
"""Bounds of the tokens that pass through one expert at a time."""


class ExpertLinear(nnx.Module):
    """A product with another kernel for each expert.

    bfloat16 is kept as its bits in uint16: on a CPU, XLA would turn all kernels into float32 to take one out.
    """

    def __init__(self, num_experts: int, in_size: int, out_size: int, precision: Precision) -> None:
        self.dtype, is_int8 = precision.dtype, precision.quantization == "int8"
        storage = jnp.uint16 if self.dtype == jnp.bfloat16 else self.dtype
        self.kernel = nnx.Param(jnp.zeros((num_experts, in_size, out_size), jnp.int8 if is_int8 else storage))
        self.kernel_scale = nnx.Param(jnp.ones((num_experts, out_size), jnp.float32)) if is_int8 else None

    def __call__(self, inputs: Float[Array, "T I"], expert: Int[Array, ""]) -> Float[Array, "T O"]:
        kernel = jax.lax.dynamic_index_in_dim(self.kernel[...], expert, keepdims=False)
        if kernel.dtype == jnp.uint16:
            kernel = jax.lax.bitcast_convert_type(kernel, jnp.bfloat16)
        kernel = kernel.astype(self.dtype)
        outputs = jnp.dot(inputs.astype(self.dtype), kernel, preferred_element_type=jnp.float32)
        return outputs if self.kernel_scale is None else outputs * self.kernel_scale[...][expert][None, :]


class Experts(nnx.Module):
    """A gated MLP for each expert, and the router, which stays in float32."""

    def __init__(self, config: ModelConfig, experts: ExpertsConfig, precision: Precision) -> None:
        hidden, inner = config.hidden_size, experts.intermediate_size
        self.experts, self.num_shards = experts, precision.num_shards
        self.activation: Activation = config.activation
        self.router = Linear(hidden, experts.num_experts, Precision(jnp.dtype(jnp.float32)), use_bias=False)
        self.gate_up = ExpertLinear(experts.num_experts, hidden, 2 * inner, precision)
        self.down = ExpertLinear(experts.num_experts, inner, hidden, precision)

    def __call__(self, inputs: Inputs, onto: Onto = None) -> Float[Array, "T E"]:
        """The outputs of each token's experts, summed by the router's weights.

        Pairs of token and expert are sorted by expert and cut into blocks of one expert, and a loop takes as
        many blocks as there are. So the shapes are fixed, no expert sees a token that did not choose it, and
        a token's product has the same shape whatever the other tokens chose.
        """
        inputs = values_of(inputs)
        num_tokens, num_active = inputs.shape[0], self.experts.num_active
        weights, chosen = self._route(inputs)
        blocks = _cut_into_blocks(chosen.reshape(num_tokens * num_active), self.experts.num_experts)

        def pass_block(index: Int[Array, ""], passed: Float[Array, "P E"]) -> Float[Array, "P E"]:
            expert, pairs = _pairs_of(blocks, index, _block_len(passed.shape[0], self.experts.num_experts))
            rows = inputs.at[pairs // num_active].get(mode="fill", fill_value=0)
            gate, up = split_by_shard(self.gate_up(rows, expert), (1, 1), self.num_shards)
            outputs = self.down(ACTIVATIONS[self.activation](gate) * up, expert)
            return passed.at[pairs].set(outputs, mode="drop")

        start = jnp.zeros((num_tokens * num_active, inputs.shape[1]), jnp.float32)
        passed = jax.lax.fori_loop(0, blocks.num_blocks, pass_block, start)
        outputs = jnp.sum(passed.reshape(num_tokens, num_active, -1) * weights[:, :, None], axis=1)
        return outputs if onto is None else onto + outputs

    def _route(self, inputs: Float[Array, "T E"]) -> tuple[Float[Array, "T A"], Int[Array, "T A"]]:
        """Weights and numbers of each token's experts, the heaviest first."""
        shares = jax.nn.softmax(self.router(inputs), axis=-1)
        weights, chosen = jax.lax.top_k(shares, self.experts.num_active)
        if self.experts.normalizes_weights:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return weights, chosen


class _Blocks(NamedTuple):
    """Pairs of token and expert, sorted by expert, and the blocks that they are cut into."""

    order: Int[Array, " P"]  # the pairs, those of one expert side by side
    starts: Int[Array, " X"]  # place in `order` of each expert's first pair
    ends: Int[Array, " X"]  # and past its last one
    block_ends: Int[Array, " X"]  # blocks of each expert and those before it

    @property
    def num_blocks(self) -> Int[Array, ""]:
        return self.block_ends[-1]


def _block_len(num_pairs: int, num_experts: int) -> int:
    """Pairs of a block: about twice an expert's fair share, so that most experts need one block.

    e.g. 128 tokens with 8 of 128 experts: 8 pairs an expert -> blocks of 16
    """
    fair_share = -(-num_pairs // num_experts)
    return min(max(1 << (2 * fair_share - 1).bit_length(), MIN_BLOCK), MAX_BLOCK)


def _cut_into_blocks(expert_of_pair: Int[Array, " P"], num_experts: int) -> _Blocks:
    counts = jnp.sum(expert_of_pair[:, None] == jnp.arange(num_experts)[None, :], axis=0, dtype=jnp.int32)
    ends = jnp.cumsum(counts)
    block_len = _block_len(expert_of_pair.shape[0], num_experts)
    return _Blocks(
        order=jnp.argsort(expert_of_pair, stable=True).astype(jnp.int32),
        starts=ends - counts,
        ends=ends,
        block_ends=jnp.cumsum(-(-counts // block_len)),
    )


def _pairs_of(
    blocks: _Blocks, index: Int[Array, ""], block_len: int
) -> tuple[Int[Array, ""], Int[Array, " B"]]:
    """The expert of a block and its pairs; places that it does not fill hold a pair past the end.

    e.g. blocks of 16, experts with 20 and 3 pairs: block 1 holds the last 4 of expert 0, block 2 those of 1
    """
    expert = jnp.sum(blocks.block_ends <= index, dtype=jnp.int32)
    blocks_before = jnp.where(expert > 0, blocks.block_ends[expert - 1], 0)
    place = blocks.starts[expert] + (index - blocks_before) * block_len + jnp.arange(block_len)
    num_pairs = blocks.order.shape[0]
    pairs = blocks.order.at[place].get(mode="fill", fill_value=num_pairs)
    return expert, jnp.where(place < blocks.ends[expert], pairs, num_pairs)
