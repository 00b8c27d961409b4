"""Which frames a window's tokens look at: one pass over known tokens, for the times of words.

Only the alignment heads' cross-attention comes back, averaged (Radford et al. 2022; timing.py of
openai/whisper): weights over the frames that hold audio, normalised over the tokens, smoothed in time.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from headrace.engines.whisper.attention import LayerKV
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.model import Decoder, DecoderLayer

logger = logging.getLogger(__name__)

MEDIAN_WIDTH = 7
"""Frames of the median filter: 0.14 s."""
MEDIAN_EXCHANGES = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4),
)  # fmt: skip
"""Pairs to put in order so that the median of seven comes to lie in the middle (Devillard 1998)."""

Heads = tuple[tuple[int, int], ...]


class Known(NamedTuple):
    """The tokens of one window, padded to a bucket, and what they belong to."""

    tokens: Int32[Array, " T"]
    num_tokens: Int32[Array, ""]
    num_frames: Int32[Array, ""]
    """Encoder positions that hold audio, at least 1."""
    context: Int32[Array, ""]
    """Encoder positions that the decoder looks at, silence among them."""
    slot: Int32[Array, ""]
    """The window's slot."""


class Attended(NamedTuple):
    """What a pass over known tokens gives."""

    frames: Float32[Array, "T F"]
    """How strongly each position looks at each frame; meaningless past num_tokens and num_frames."""
    probability: Float32[Array, " T"]
    """Of each position's next token, among the tokens of text; meaningless past num_tokens - 1."""


def alignment_heads(given: Sequence[Sequence[int]] | None, dims: ModelDims) -> Heads:
    """The (layer, head) pairs that a checkpoint names, else all of the decoder's upper half.

    A distilled model may name the heads of its teacher, which it does not have: they count as none.
    """
    named = tuple((int(layer), int(head)) for layer, head in given or ())
    if named and all(layer < dims.decoder_layers and head < dims.decoder_heads for layer, head in named):
        return named
    if named:
        logger.warning("alignment_heads are not this model's: layers: %d", dims.decoder_layers)
    layers = range(dims.decoder_layers // 2, dims.decoder_layers)
    return tuple((layer, head) for layer in layers for head in range(dims.decoder_heads))


def attend_to_frames(
    decoder: Decoder, crosses: tuple[LayerKV, ...], known: Known, heads: Heads, num_text: int
) -> Attended:
    """The frames that the tokens of one window look at; `crosses` holds all windows' keys and values.

    Token ids below num_text stand for text.
    """
    num_positions = known.tokens.shape[0]
    x = decoder.embed(known.tokens) + decoder.positions[...][:num_positions]
    weights = []
    for index, layer in enumerate(decoder.layers):
        frames = layer.backend.frames_at(crosses[index], known.slot, decoder.num_frames)
        x, scores = _advance(layer, x, frames, known.context)
        chosen = [head for of_layer, head in heads if of_layer == index]
        if chosen:
            weights.append(_over_audio(scores[jnp.array(chosen)], known.num_frames))
    logits = decoder.logits(x)[:, :num_text]
    following = jnp.minimum(jnp.roll(known.tokens, -1), num_text - 1)
    picked = jnp.take_along_axis(logits, following[:, None], axis=1)[:, 0]
    smoothed = _smooth(_over_tokens(jnp.concatenate(weights), known.num_tokens), known.num_frames)
    return Attended(
        frames=jnp.mean(smoothed, axis=0),
        probability=jnp.exp(picked - jax.nn.logsumexp(logits, axis=-1)),
    )


def _advance(
    layer: DecoderLayer,
    x: Float32[Array, "T D"],
    frames: tuple[Float[Array, "F D"], Float[Array, "F D"]],
    context: Int32[Array, ""],
) -> tuple[Float32[Array, "T D"], Float32[Array, "N T F"]]:
    """All positions through one layer, and the scores of its cross-attention."""
    num_heads = layer.num_heads
    q, k, v = (_by_head(part, num_heads) for part in jnp.split(layer.attention.project(x), 3, axis=-1))
    scores = jnp.einsum("nth,nsh->nts", q, k, preferred_element_type=jnp.float32)
    past = jnp.tril(jnp.ones(scores.shape[1:], bool))
    x = x + layer.attention.out(_mix(jnp.where(past[None], scores, -jnp.inf), v))
    q, keys, values = (_by_head(part, num_heads) for part in (layer.cross.project(x), *frames))
    scores = jnp.einsum("nth,nfh->ntf", q, keys, preferred_element_type=jnp.float32)
    inside = jnp.arange(scores.shape[-1], dtype=jnp.int32) < context
    scores = jnp.where(inside[None, None], scores, -jnp.inf)
    x = x + layer.cross.out(_mix(scores, values))
    return layer.feed_forward(x), scores


def _by_head(x: Float[Array, "T D"], num_heads: int) -> Float[Array, "N T H"]:
    return jnp.swapaxes(x.reshape(x.shape[0], num_heads, -1), 0, 1)


def _mix(scores: Float32[Array, "N T S"], values: Float[Array, "N S H"]) -> Float[Array, "T D"]:
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("nts,nsh->tnh", weights, values, preferred_element_type=jnp.float32)
    return mixed.reshape(mixed.shape[0], -1).astype(values.dtype)


def _over_audio(scores: Float32[Array, "A T F"], num_frames: Int32[Array, ""]) -> Float32[Array, "A T F"]:
    """Weights over the frames that hold audio alone."""
    inside = jnp.arange(scores.shape[-1], dtype=jnp.int32) < num_frames
    return jax.nn.softmax(jnp.where(inside[None, None], scores, -jnp.inf), axis=-1)


def _over_tokens(weights: Float32[Array, "A T F"], num_tokens: Int32[Array, ""]) -> Float32[Array, "A T F"]:
    """Each frame's weights in standard deviations from their mean over the tokens."""
    count = num_tokens.astype(jnp.float32)
    inside = (jnp.arange(weights.shape[1], dtype=jnp.int32) < num_tokens)[None, :, None]
    mean = jnp.sum(jnp.where(inside, weights, 0.0), axis=1, keepdims=True) / count
    apart = weights - mean
    variance = jnp.sum(jnp.where(inside, jnp.square(apart), 0.0), axis=1, keepdims=True) / count
    return apart * lax.rsqrt(jnp.maximum(variance, 1e-20))


def _smooth(weights: Float32[Array, "A T F"], num_frames: Int32[Array, ""]) -> Float32[Array, "A T F"]:
    """The median of seven neighbouring frames; the audio is mirrored at its ends."""
    half, width = MEDIAN_WIDTH // 2, weights.shape[-1]
    place = jnp.arange(-half, width + half, dtype=jnp.int32)
    last = num_frames - 1
    mirrored = jnp.clip(last - jnp.abs(last - jnp.abs(place)), 0, last)
    padded = jnp.take(weights, mirrored, axis=-1)
    taken = [padded[..., shift : shift + width] for shift in range(MEDIAN_WIDTH)]
    for low, high in MEDIAN_EXCHANGES:
        taken[low], taken[high] = jnp.minimum(taken[low], taken[high]), jnp.maximum(taken[low], taken[high])
    return taken[half]
