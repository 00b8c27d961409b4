"""Runs of repeated tokens are counted as they grow."""

import jax
import jax.numpy as jnp
import numpy as np

from headrace.engines.whisper.decode import append
from headrace.engines.whisper.repetition import MAX_PERIOD, extend_runs
from headrace.engines.whisper.slots import Rows
from headrace.engines.whisper.tokenizer import SpecialTokens, WhisperTokenizer


def runs_of(tokens: list[int], first: int, special: SpecialTokens) -> np.ndarray:
    """The runs after the last token, of which those from `first` on were generated."""
    table = np.zeros((1, 64), np.int32)
    table[0, : len(tokens)] = tokens
    runs = jnp.zeros((1, MAX_PERIOD), jnp.int32)
    for column in range(first, len(tokens)):
        new = tuple(jnp.array([value], jnp.int32) for value in (tokens[column], column, first))
        runs = extend_runs(runs, jnp.asarray(table), new, special)
    return np.asarray(runs)[0]


def test_a_repeated_stretch_counts_from_its_second_time(english: WhisperTokenizer):
    runs = runs_of([9, 9, 1, 2, 3, 1, 2, 3, 1, 2], 2, english.special)
    assert runs[2] == 5
    assert np.flatnonzero(runs).tolist() == [2, 5]


def test_another_token_ends_every_run(english: WhisperTokenizer):
    assert not runs_of([1, 1, 1, 1, 2], 0, english.special).any()
    assert runs_of([1, 1, 1, 1], 0, english.special)[:3].tolist() == [3, 2, 1]


def test_the_prompt_is_no_part_of_a_run(english: WhisperTokenizer):
    assert not runs_of([5, 6, 5, 6], 2, english.special).any()


def test_timestamps_count_as_one_token(english: WhisperTokenizer):
    begin = english.special.timestamp_begin
    runs = runs_of([begin, 7, begin + 9, begin + 9, 7, begin + 20, begin + 20, 7], 0, english.special)
    assert runs[2] == 5


def generate(tokens: list[int], loop_length: int, special: SpecialTokens) -> Rows:
    """A row after these tokens, or those up to its end."""

    def one(value: float | bool, dtype: type = np.int32) -> jnp.ndarray:
        return jnp.array([value], dtype)

    rows = Rows(
        tokens=jnp.zeros((1, 64), jnp.int32), position=one(0), prompt_len=one(1), limit=one(64),
        loop_length=one(loop_length), runs=jnp.zeros((1, MAX_PERIOD), jnp.int32), num_frames=one(1),
        finished=one(False, bool), with_timestamps=one(False, bool), last_timestamp=one(-1),
        temperature=one(0, np.float32), seed=one(0, np.uint32), sum_logprob=one(0, np.float32),
        no_speech_prob=one(0, np.float32), language_prob=one(1, np.float32),
    )  # fmt: skip
    step = jax.jit(lambda rows, token: append(rows, token, one(-0.5, np.float32), special))
    for token in tokens:
        rows = step(rows, one(token))
    return rows


def test_a_row_that_repeats_itself_ends(english: WhisperTokenizer):
    rows = generate([5, *[7, 8] * 20], 10, english.special)
    assert bool(rows.finished[0])
    assert int(rows.position[0]) == 13, "5, 7 8, and ten tokens that were there before"
    assert float(rows.sum_logprob[0]) == -0.5 * 13


def test_a_row_that_repeats_itself_a_little_goes_on(english: WhisperTokenizer):
    rows = generate([5, *[7, 8] * 5, 9, 8, 7, 7, 8], 10, english.special)
    assert not bool(rows.finished[0])
    assert int(rows.position[0]) == 16
