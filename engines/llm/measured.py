"""Prefill and decode of a loaded model, timed apart."""

import time
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from headrace.engines.llm.costs import token_flops, weights_read
from headrace.engines.llm.llm import LLM
from headrace.engines.llm.sampling_params import SamplingParams
from headrace.engines.precision import resolve_dtype
from headrace.engines.roofline import Phase

# Ids below are special tokens in many tokenizers.
_FIRST_TOKEN = 100


def measure_phases(llm: LLM, *, num_rows: int, prompt_tokens: int, max_tokens: int) -> list[Phase]:
    """Prefill of random prompts, and decode: the time of whole rows less that of rows of one token.

    Raises:
      ValueError: rows do not fit the context, or have no token to decode after the first.
    """
    if max_tokens < 2 or prompt_tokens + max_tokens > llm.max_model_len:
        raise ValueError(
            f"{prompt_tokens} prompt and {max_tokens} new tokens: give at least 2 new ones, and at most "
            f"{llm.max_model_len} in all"
        )
    llm.announce(_params(1))
    llm.precompile()
    _seconds(llm, num_rows, prompt_tokens, 2, seed=0)
    prefill_s = _seconds(llm, num_rows, prompt_tokens, 1, seed=1)
    whole_s = _seconds(llm, num_rows, prompt_tokens, max_tokens, seed=2)
    config, steps = llm.model_config, max_tokens - 1
    read = (
        weights_read(config) * jnp.dtype(llm.config.quantization or resolve_dtype(llm.config.dtype)).itemsize
    )
    first = token_flops(config, prompt_tokens, with_head=True) - token_flops(
        config, prompt_tokens, with_head=False
    )
    prefill = prompt_tokens * token_flops(config, (prompt_tokens + 1) / 2, with_head=False) + first
    decode = steps * token_flops(config, prompt_tokens + max_tokens / 2, with_head=True)
    num_steps = steps * -(-num_rows // llm.num_slots)
    return [
        Phase("prefill", "tokens", num_rows * prompt_tokens, num_rows * prefill, read, prefill_s),
        Phase("decode", "tokens", num_rows * steps, num_rows * decode, read * num_steps, whole_s - prefill_s),
    ]


def _seconds(llm: LLM, num_rows: int, prompt_tokens: int, max_tokens: int, seed: int) -> float:
    """Seconds for all rows; other seeds make other prompts, which no prefix cache knows."""
    prompts = _prompts(llm.model_config.vocab_size, num_rows, prompt_tokens, seed)
    started_s = time.perf_counter()
    llm.generate(prompt_token_ids=prompts, sampling_params=_params(max_tokens))
    return time.perf_counter() - started_s


def _prompts(vocab_size: int, num_rows: int, num_tokens: int, seed: int) -> Sequence[Sequence[int]]:
    draw = np.random.default_rng(seed)
    first = min(_FIRST_TOKEN, vocab_size - 1)
    return draw.integers(first, vocab_size, (num_rows, num_tokens)).tolist()


def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)
