"""The native choice of tokens against the rules in plain XLA."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines import native
from headrace.engines.checkpoints import Checkpoint
from headrace.engines.whisper import WhisperConfig
from headrace.engines.whisper.choose import (
    apply_rules,
    can_choose_natively,
    choose,
    choose_in_xla,
    history_of,
)
from headrace.engines.whisper.loading import load
from headrace.engines.whisper.slots import Decoding, Rows, empty_slots

NUM_ROWS = 24


@pytest.fixture(scope="module")
def setting(random_whisper: Callable[..., Checkpoint]) -> tuple[Decoding, Rows]:
    config = WhisperConfig(dtype="float32", batch_size=NUM_ROWS, max_length=20, decode_burst=5)
    loaded = load(random_whisper(num_mels=80), config)
    if not can_choose_natively(loaded.decoding):
        pytest.skip("the native kernels are not built")
    return loaded.decoding, empty_slots(loaded.model, loaded.decoding).rows


def rows_after(setting: tuple[Decoding, Rows], seed: int, temperature: float = 0.0) -> tuple[Decoding, Rows]:
    """Rows with prompts of three tokens and 0 to 12 tokens of text and times that have come since."""
    decoding, rows = setting
    rng, special = np.random.default_rng(seed), decoding.special
    tokens = rng.integers(0, special.eot, (NUM_ROWS, decoding.max_length))
    is_time = rng.random(tokens.shape) < 0.5
    times = special.timestamp_begin + np.sort(rng.integers(0, 1501, tokens.shape), axis=1)
    tokens = np.where(is_time, times, tokens).astype(np.int32)
    position = rng.integers(2, 15, NUM_ROWS).astype(np.int32)
    generated = [tokens[row, 3 : last + 1] for row, last in enumerate(position)]
    newest = [
        max((int(token) for token in own if token >= special.timestamp_begin), default=-1)
        for own in generated
    ]
    return decoding, rows._replace(
        tokens=jnp.asarray(tokens),
        position=jnp.asarray(position),
        prompt_len=jnp.full(NUM_ROWS, 3, jnp.int32),
        finished=jnp.zeros(NUM_ROWS, bool),
        with_timestamps=jnp.asarray(rng.random(NUM_ROWS) < 0.7),
        last_timestamp=jnp.asarray(newest, jnp.int32),
        temperature=jnp.asarray(np.where(np.arange(NUM_ROWS) % 2, temperature, 0.0), jnp.float32),
        seed=jnp.arange(NUM_ROWS, dtype=jnp.uint32),
    )


def logits_of(decoding: Decoding, seed: int, time_bonus: float) -> jnp.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (NUM_ROWS, decoding.dims.num_vocab)).astype(np.float32)
    logits[:, decoding.special.timestamp_begin :] += time_bonus
    return jnp.asarray(logits)


@pytest.fixture(scope="module")
def both_ways(setting):
    """The choice and its reference, compiled."""
    decoding, _ = setting

    def reference(logits: jnp.ndarray, rows: Rows):
        ruled = apply_rules(logits, history_of(rows, decoding.special), decoding)
        return choose_in_xla(ruled, rows, decoding)

    return jax.jit(lambda logits, rows: choose(logits, rows, decoding)), jax.jit(reference)


@pytest.mark.parametrize("time_bonus", [-12.0, 0.0, 12.0])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_kernel_chooses_what_the_rules_leave(setting, both_ways, time_bonus: float, temperature: float):
    for seed in range(4):
        decoding, rows = rows_after(setting, seed, temperature)
        logits = logits_of(decoding, seed, time_bonus)
        (tokens, logprobs), (wanted_tokens, wanted_logprobs) = (way(logits, rows) for way in both_ways)
        np.testing.assert_array_equal(tokens, wanted_tokens)
        np.testing.assert_allclose(logprobs, wanted_logprobs, atol=2e-5)


def test_the_first_of_equal_logits_is_taken(setting):
    decoding, rows = rows_after(setting, 0)
    logits = jnp.zeros((NUM_ROWS, decoding.dims.num_vocab), jnp.float32)
    ruled = apply_rules(logits, history_of(rows, decoding.special), decoding)
    np.testing.assert_array_equal(choose(logits, rows, decoding)[0], jnp.argmax(ruled, axis=-1))


@pytest.mark.parametrize("level", range(native.BEST_LEVEL + 1))
def test_all_instruction_sets_choose_alike(setting, level: int):
    decoding, rows = rows_after(setting, 3)
    special, timestamps = decoding.special, decoding.rules[2]
    logits = logits_of(decoding, 3, 0.0)
    table = jnp.zeros((4, logits.shape[1]), jnp.float32)
    kinds = native.TokenKinds(special.eot, special.timestamp_begin, special.timestamp_end)
    allowed = timestamps.allowed(history_of(rows, special))
    best = native.choose_token(logits, table, allowed, kinds)
    tokens, totals = native.choose_token(logits, table, allowed, kinds, level)
    np.testing.assert_array_equal(tokens, best[0])
    np.testing.assert_allclose(totals, best[1], atol=1e-5)


def test_finished_rows_are_passed_over(setting):
    decoding, rows = rows_after(setting, 1)
    logits = logits_of(decoding, 1, 0.0)
    some = rows._replace(finished=jnp.arange(NUM_ROWS) % 3 == 0)
    going = ~np.asarray(some.finished)
    np.testing.assert_array_equal(
        np.asarray(choose(logits, some, decoding)[0])[going],
        np.asarray(choose(logits, rows, decoding)[0])[going],
    )
