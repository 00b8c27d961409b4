"""Log-probabilities of prompts: which tokens of a prefill are scored, and the program that scores them.

The program takes the hidden states that a prefill leaves, so that no prefill does more than it would: rows
that do not ask pay nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from headrace.engines.llm.batch import PrefillBatch
from headrace.engines.llm.choose import score_top
from headrace.engines.llm.logprobs import PromptTrace
from headrace.engines.llm.model import Decoder

BLOCK_TOKENS = 128
"""Tokens whose logits are in memory at the same time."""


class PromptSpan(NamedTuple):
    """Neighbouring tokens of a prefill whose followers in the prompt are scored."""

    trace: PromptTrace
    first: int
    """Index in the prefill of the first of them."""
    targets: tuple[int, ...]
    """The token that follows each."""


def take_spans(batch: PrefillBatch) -> list[PromptSpan]:
    """What of a batch is to be scored; counts as requested from now on."""
    spans, cursor = [], 0
    for sequence, length in zip(batch.sequences, batch.lengths, strict=True):
        trace, start = sequence.prompt_trace, sequence.num_computed
        if trace is not None:
            first = max(start, trace.num_requested)
            end = min(start + length, sequence.num_prompt - 1)
            if first < end:
                targets = tuple(sequence.tokens[first + 1 : end + 1])
                spans.append(PromptSpan(trace, cursor + first - start, targets))
                trace.num_requested = end
        cursor += length
    return spans


def pack_spans(spans: list[PromptSpan], num_tokens: int) -> dict[str, np.ndarray]:
    """Arguments of `score_prompts`: what is scored, and how many that is."""
    size = -(-num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS
    packed = np.zeros((2, size), np.int32)
    cursor = 0
    for span in spans:
        end = cursor + len(span.targets)
        packed[0, cursor:end] = np.arange(span.first, span.first + len(span.targets))
        packed[1, cursor:end] = span.targets
        cursor = end
    return {"wanted": packed, "count": np.asarray(cursor, np.int32)}


def score_prompts(
    graph: nnx.GraphDef,
    weights: nnx.State,
    hidden: Float[Array, "T E"],
    wanted: Int[Array, "2 N"],
    count: Int[Array, ""],
    num_top: int,
) -> Int[Array, "N columns"]:
    """`wanted` holds token index and target of all that is scored.

    Returns of each target its log-probability (as bits) and rank, then the likeliest tokens and theirs (as
    bits). A block of tokens at a time, and only as many blocks as there are targets.
    """
    decoder: Decoder = nnx.merge(graph, weights)

    def score_block(index: Int[Array, ""], results: Int[Array, "N columns"]) -> Int[Array, "N columns"]:
        start = index * BLOCK_TOKENS
        tokens, targets = jax.lax.dynamic_slice_in_dim(wanted, start, BLOCK_TOKENS, axis=1)
        logits = decoder.logits(hidden[tokens])
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)
        top = score_top(logits, chosen, normalizer, num_top)
        columns = [
            _as_bits(chosen - normalizer[:, None]),
            top.rank[:, None],
            top.tokens,
            _as_bits(top.logprobs),
        ]
        return jax.lax.dynamic_update_slice_in_dim(results, jnp.concatenate(columns, axis=1), start, axis=0)

    results = jnp.zeros((wanted.shape[1], 2 + 2 * num_top), jnp.int32)
    return jax.lax.fori_loop(0, -(-count // BLOCK_TOKENS), score_block, results)


def record_spans(spans: list[PromptSpan], scores: np.ndarray) -> None:
    """Gives the traces what `score_prompts` found."""
    num_top = (scores.shape[1] - 2) // 2
    logprobs = np.ascontiguousarray(scores[:, 0]).view(np.float32)
    top_tokens = scores[:, 2 : 2 + num_top]
    top_logprobs = np.ascontiguousarray(scores[:, 2 + num_top :]).view(np.float32)
    cursor = 0
    for span in spans:
        for target in span.targets:
            top = (top_tokens[cursor], top_logprobs[cursor])
            span.trace.add(target, float(logprobs[cursor]), int(scores[cursor, 1]), top)
            cursor += 1


def _as_bits(values: Float[Array, "R columns"]) -> Int[Array, "R columns"]:
    return jax.lax.bitcast_convert_type(values, jnp.int32)
