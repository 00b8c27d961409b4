"""Each rule forbids what it should, and nothing else."""

import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines.whisper.logit_rules import (
    History,
    OnlyLanguages,
    Suppress,
    SuppressAtBegin,
    Timestamps,
    decoding_rules,
)
from headrace.engines.whisper.tokenizer import SpecialTokens

SPECIAL = SpecialTokens(
    sot=11,
    eot=10,
    no_timestamps=17,
    timestamp_begin=18,
    no_speech=16,
    transcribe=14,
    translate=13,
    prev=None,
    languages={"en": 12, "de": 15},
)
NUM_VOCAB = 18 + 1501
TEXT = np.arange(10)
TIMES = np.arange(18, NUM_VOCAB)


def history(*generated: int, with_timestamps: bool = True) -> History:
    """The history of one row."""
    times = [token for token in generated if token >= SPECIAL.timestamp_begin]

    def row(value: int) -> jnp.ndarray:
        return jnp.array([value], jnp.int32)

    return History(
        num_generated=row(len(generated)),
        last=row(generated[-1] if generated else SPECIAL.sot),
        second_last=row(generated[-2] if len(generated) > 1 else SPECIAL.sot),
        last_timestamp=row(times[-1] if times else -1),
        with_timestamps=jnp.array([with_timestamps]),
    )


def allowed(rule, past: History, logits: np.ndarray | None = None) -> set[int]:
    """Tokens that the rule leaves, over logits where text is likelier than all timestamps together."""
    if logits is None:
        logits = np.zeros(NUM_VOCAB, np.float32)
        logits[:18] = 20.0
    out = np.asarray(rule(jnp.asarray(logits)[None], past))[0]
    return {int(token) for token in np.flatnonzero(np.isfinite(out))}


def time(seconds: float) -> int:
    return SPECIAL.timestamp_begin + round(seconds / 0.02)


def times(start_s: float, end_s: float = 30.0) -> set[int]:
    return set(range(time(start_s), time(end_s) + 1))


def test_suppressed_tokens_are_never_allowed():
    assert allowed(Suppress((3, 4)), history(1, 2)) == set(range(NUM_VOCAB)) - {3, 4}


def test_tokens_suppressed_at_begin_return_after_the_first():
    rule = SuppressAtBegin((0, SPECIAL.eot))
    assert allowed(rule, history()) == set(range(NUM_VOCAB)) - {0, SPECIAL.eot}
    assert allowed(rule, history(1)) == set(range(NUM_VOCAB))


def test_only_languages_are_left_for_detection():
    assert allowed(OnlyLanguages((12, 15)), history()) == {12, 15}


def test_first_token_is_a_timestamp_of_at_most_one_second():
    assert allowed(Timestamps(SPECIAL), history()) == times(0.0, 1.0)


def test_after_text_and_a_time_comes_a_time_or_the_end():
    left = allowed(Timestamps(SPECIAL), history(time(0), 1, time(2)))
    assert left - {11, 12, 13, 14, 15, 16} == times(2.0) | {SPECIAL.eot}


def test_after_two_times_comes_no_time():
    left = allowed(Timestamps(SPECIAL), history(time(0), 1, time(2), time(2)))
    assert not left & set(TIMES.tolist())
    assert left >= set(TEXT.tolist()) | {SPECIAL.eot}


def test_first_time_counts_as_a_pair():
    assert not allowed(Timestamps(SPECIAL), history(time(0.5))) & set(TIMES.tolist())


def test_times_never_go_back_and_segments_are_not_empty():
    left = allowed(Timestamps(SPECIAL), history(time(1), 4, time(3), time(3), 5))
    assert left & set(TIMES.tolist()) == times(3.02)


def test_a_new_segment_may_begin_where_the_last_one_ended():
    assert time(3) in allowed(Timestamps(SPECIAL), history(time(1), 4, time(3)))


def test_a_time_is_forced_where_all_times_together_are_likelier_than_any_text():
    logits = np.zeros(NUM_VOCAB, np.float32)
    past = history(time(1), 4)
    logits[4] = np.log(1300.0)  # 1451 later times of weight 1 each
    assert allowed(Timestamps(SPECIAL), past, logits) == times(1.02)
    logits[4] = np.log(1500.0)
    assert 4 in allowed(Timestamps(SPECIAL), past, logits)


def test_notimestamps_is_forbidden_only_where_times_are_wanted():
    past = history(1, with_timestamps=True)
    assert SPECIAL.no_timestamps not in allowed(Timestamps(SPECIAL), past)
    assert allowed(Timestamps(SPECIAL), history(1, with_timestamps=False)) == set(range(NUM_VOCAB))


@pytest.mark.parametrize("seed", range(4))
def test_sampled_rows_are_always_well_formed(seed: int):
    rng = np.random.default_rng(seed)
    rules = decoding_rules(SPECIAL, (11, 12, 13, 14, 15, 16), (0, SPECIAL.eot))
    generated: list[int] = []
    while len(generated) < 40 and SPECIAL.eot not in generated:
        logits = jnp.asarray(rng.gumbel(size=(1, NUM_VOCAB)) * 3, jnp.float32)
        for rule in rules:
            logits = rule(logits, history(*generated))
        generated.append(int(np.argmax(np.asarray(logits)[0])))
    marks = [token for token in generated if SPECIAL.is_timestamp(token)]
    assert SPECIAL.is_timestamp(generated[0])
    assert marks == sorted(marks)
    runs = [
        len(run) for run in "".join("t" if SPECIAL.is_timestamp(x) else "w" for x in generated).split("w")
    ]
    assert max(runs) <= 2
