"""Chunked windows: what a text leaves out at its window's end is decoded, and all lie in their order."""

import numpy as np
import pytest

from headrace.audio import Ending, Window
from headrace.engines.whisper.feed import Account, AudioRoom, Clip, ClipFeed
from headrace.engines.whisper.plans import ChunkedPlan, Chunking, Outcome
from headrace.engines.whisper.quality import Attempt
from headrace.engines.whisper.seeking import unsaid_from
from headrace.engines.whisper.tokenizer import WhisperTokenizer

RATE = 16_000


def attempt(tokenizer: WhisperTokenizer, *parts: float | int) -> Attempt:
    """Floats are timestamps in seconds, integers ids of text."""
    begin = tokenizer.special.timestamp_begin
    return Attempt(
        token_ids=tuple(begin + round(part / 0.02) if isinstance(part, float) else part for part in parts),
        text="text",
        avg_logprob=-0.2,
        no_speech_prob=0.0,
        temperature=0.0,
        language="en",
        language_probability=None,
        with_timestamps=True,
        ended=True,
    )


def plan_of(tokenizer: WhisperTokenizer, *clips: Clip) -> ChunkedPlan:
    feed = ClipFeed(Account(AudioRoom(10**9), least=0, most=10**9))
    for clip in clips:
        feed.put(clip)
    feed.end(Ending(60.0))
    return ChunkedPlan(feed, Chunking(special=tokenizer.special, silence_dbfs=-90.0, previous=(7,)))


def clip(start_s: int, stop_s: int, right_s: int = 0, pieces: tuple[tuple[int, int], ...] = ()) -> Clip:
    window = Window(start_s * RATE, stop_s * RATE, 5 * RATE if start_s else 0, right_s * RATE)
    length = sum(stop - start for start, stop in pieces) or window.stop - window.start
    return Clip(window, np.random.default_rng(0).normal(size=length).astype(np.float32), pieces)


def test_what_a_text_leaves_out_is_decoded_as_a_window_of_its_own(english: WhisperTokenizer):
    plan = plan_of(english, clip(0, 28))
    turn = plan.take()
    plan.put(turn, Outcome(said := attempt(english, 0.0, 5, 25.0, 25.0)))
    assert not plan.is_finished()
    rest = plan.take()
    assert rest.window == Window(25 * RATE, 28 * RATE, 0, 0)
    assert rest.previous == (7,)
    np.testing.assert_array_equal(rest.waveform, turn.waveform[25 * RATE :])
    plan.put(rest, Outcome(other := attempt(english, 0.0, 6, 2.9)))
    assert plan.is_finished()
    assert [text.attempt for text in plan.texts] == [said, other]
    assert plan.texts[0].window == Window(0, 25 * RATE, 0, 0)
    assert plan.texts[0].decoded == turn.window


@pytest.mark.parametrize(
    "parts",
    [(0.0, 5, 25.0), (0.0, 5), (), (0.0, 5, 27.5, 27.5), (0.0, 5, 0.5, 0.5)],
    ids=["single timestamp", "no timestamp", "nothing", "nothing left", "hardly a text"],
)
def test_a_text_that_does_not_go_on_ends_its_window(english: WhisperTokenizer, parts: tuple):
    plan = plan_of(english, clip(0, 28))
    plan.put(plan.take(), Outcome(attempt(english, *parts)))
    assert plan.is_finished()


def test_silence_after_a_text_is_not_decoded(english: WhisperTokenizer):
    window = clip(0, 28)
    assert window.waveform is not None
    window.waveform[25 * RATE :] = 0
    plan = plan_of(english, window)
    plan.put(plan.take(), Outcome(attempt(english, 0.0, 5, 25.0, 25.0)))
    assert plan.is_finished()


def test_what_the_next_window_has_is_left_to_it(english: WhisperTokenizer):
    """The second window begins at 20 s, in the middle of what is said from 19.5 s on, after a pause."""
    for said_s, goes_on_s, left_out in ((21.0, 21.0, False), (19.0, 20.0, False), (19.0, 19.5, True)):
        plan = plan_of(english, clip(0, 30, right_s=5), clip(20, 45))
        first, second = plan.take(), plan.take()
        plan.put(second, Outcome(attempt(english, 0.0, 6, 25.0)))
        plan.put(first, Outcome(attempt(english, 0.0, 5, said_s, goes_on_s)))
        assert plan.is_ready() == left_out
        assert [text.window.start // RATE for text in plan.texts] == ([0, 19, 20] if left_out else [0, 20])


def test_parts_of_packed_speech_are_split_where_the_text_ends(english: WhisperTokenizer):
    plan = plan_of(english, clip(2, 50, pieces=((2 * RATE, 8 * RATE), (40 * RATE, 50 * RATE))))
    plan.put(plan.take(), Outcome(attempt(english, 0.0, 5, 9.0, 9.0)))
    plan.put(plan.take(), Outcome(None))
    assert [text.pieces for text in plan.texts] == [
        ((2 * RATE, 8 * RATE), (40 * RATE, 43 * RATE)),
        ((43 * RATE, 50 * RATE),),
    ]


def test_only_a_pair_at_the_end_says_that_speech_goes_on(english: WhisperTokenizer):
    for parts, want in (
        ((0.0, 5, 2.0, 2.5), (2 * RATE, 5 * RATE // 2)),
        ((0.0, 5, 2.0), None),
        ((2.0,), None),
        ((), None),
    ):
        assert unsaid_from(attempt(english, *parts).token_ids, english.special) == want
