"""Sequential mode: where windows begin, and that its text is that of transformers."""

import json
from pathlib import Path

import jiwer
import numpy as np
import pytest

from headrace.audio import Ending, load_audio
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.whisper import TranscribeOptions, Transcription, WhisperConfig, WhisperEngine
from headrace.engines.whisper.feed import Account, AudioRoom, SampleFeed
from headrace.engines.whisper.plans import Outcome, Seeking, SequentialPlan
from headrace.engines.whisper.quality import Attempt
from headrace.engines.whisper.seeking import next_seek
from headrace.engines.whisper.tokenizer import WhisperTokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
WINDOW = 480_000
MAX_DIFFERENCE = 0.05
"""Most words that may differ because a window's features are made from its own samples."""


def tokens(tokenizer: WhisperTokenizer, *parts: float | int) -> tuple[int, ...]:
    """Floats are timestamps in seconds, integers ids of text."""
    begin = tokenizer.special.timestamp_begin
    return tuple(begin + round(part / 0.02) if isinstance(part, float) else part for part in parts)


def attempt(token_ids: tuple[int, ...], temperature: float = 0.0) -> Attempt:
    return Attempt(
        token_ids=token_ids,
        text="text",
        avg_logprob=-0.2,
        no_speech_prob=0.0,
        temperature=temperature,
        language="en",
        language_probability=None,
        with_timestamps=True,
        ended=True,
    )


def test_the_next_window_begins_at_the_last_pair(english: WhisperTokenizer):
    ids = tokens(english, 0.0, 5, 2.0, 2.0, 6, 4.5, 4.5, 7)
    assert next_seek(ids, english.special, WINDOW) == (ids[:6], round(4.5 * 16_000))


def test_a_single_timestamp_at_the_end_uses_up_the_window(english: WhisperTokenizer):
    for ids in (
        tokens(english, 0.0, 5, 2.0, 2.0, 6, 4.5),
        tokens(english, 0.0, 5, 2.0),
        tokens(english, 0.0, 5),
        tokens(english, 0.0),
        (),
    ):
        assert next_seek(ids, english.special, WINDOW) == (ids, WINDOW)


def test_no_step_leaves_the_window_or_stays(english: WhisperTokenizer):
    assert next_seek(tokens(english, 0.0, 5, 29.0, 29.0), english.special, 160_000)[1] == 160_000
    assert next_seek(tokens(english, 0.0, 0.0), english.special, 160_000)[1] == 160_000


def make_plan(tokenizer: WhisperTokenizer, seconds: float, **seeking) -> SequentialPlan:
    feed = SampleFeed(Account(AudioRoom(10**9), least=10**9, most=10**9))
    sound = np.random.default_rng(0).normal(size=round(seconds * 16_000)).astype(np.float32)
    for start in range(0, len(sound), 100_000):
        feed.add(sound[start : start + 100_000])
    feed.end(Ending(seconds))
    settings = {"window_samples": WINDOW, "silence_dbfs": -70.0, "max_previous": 5, **seeking}
    return SequentialPlan(feed, Seeking(special=tokenizer.special, **settings))


def go_through(plan: SequentialPlan, attempts: list[Attempt]) -> list[tuple[float, tuple[int, ...]]]:
    """Start in seconds and previous tokens of each window."""
    seen = []
    while plan.is_ready():
        turn = plan.take()
        assert not plan.is_ready(), "one window at a time"
        seen.append((turn.window.start / 16_000, turn.previous))
        plan.put(turn, Outcome(attempts.pop(0)))
    assert plan.is_finished()
    return seen


def test_windows_follow_the_text(english: WhisperTokenizer):
    first = attempt(tokens(english, 0.0, 5, 20.0, 20.0, 6))
    second = attempt(tokens(english, 0.0, 6, 3.0))
    plan = make_plan(english, 55.0)
    assert go_through(plan, [first, second, first]) == [(0.0, ()), (20.0, ()), (50.0, ())]
    assert [text.window.start / 16_000 for text in plan.texts] == [0, 20, 50]


def test_the_text_before_is_the_prompt(english: WhisperTokenizer):
    first = attempt(tokens(english, 0.0, 5, 20.0, 20.0, 6))
    kept = first.token_ids[:3]
    plan = make_plan(english, 85.0, first_previous=(1, 2), always_previous=(9,), condition_on_previous=True)
    hot = attempt(tokens(english, 0.0, 7, 20.0, 20.0), temperature=0.8)
    assert go_through(plan, [first, first, hot, first, first]) == [
        (0.0, (9, 1, 2)),
        (20.0, (9, 2, *kept)),
        (40.0, (9, 2, *kept, *kept)[:1] + (kept + kept)[-4:]),
        (60.0, (9,)),
        (80.0, (9, *kept)),
    ]


def test_without_conditioning_the_prompt_is_the_first_windows(english: WhisperTokenizer):
    first = attempt(tokens(english, 0.0, 5, 20.0, 20.0, 6))
    plan = make_plan(english, 45.0, first_previous=(1, 2))
    assert [previous for _, previous in go_through(plan, [first] * 3)] == [(1, 2), (), ()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_en", "base"])
def test_sequential_text_is_that_of_transformers(name: str, shared_data: Path):
    """Equal to the seeking of transformers over each window's own features (`windows`), where that was made.

    `generate` makes the features from the whole recording, which turns close calls in some windows; see
    make_whisper_long_goldens.py. Where sampled retries decide (the noisy radio speech) nothing is equal.
    """
    golden = json.loads((GOLDEN / f"whisper_{name}_long.json").read_text())
    rows = [row for row in golden["rows"] if not row["conditioned"] and "apollo" not in row["files"][0]]
    config = WhisperConfig(dtype="float32", batch_size=4, temperatures=(0.0,), mode="sequential")
    with WhisperEngine(open_checkpoint(golden["model"].split(",")[0]), config) as engine:
        futures = []
        for number, row in enumerate(rows):
            sound = np.concatenate([load_audio(shared_data / file).waveform for file in row["files"]])
            assert len(sound) == row["num_samples"]
            options = TranscribeOptions(language=row["language"], return_timestamps=True)
            futures.append(engine.submit(sound, options, request_id=str(number)))
        for row, future in zip(rows, futures, strict=True):
            result = future.result()
            assert jiwer.wer(row["text"].strip(), result.text) < MAX_DIFFERENCE, row["files"]
            if "windows" in row:
                assert_equal(row, result)


def assert_equal(row: dict, result: Transcription) -> None:
    assert result.text.split() == row["windows_text"].split(), row["files"]
    limit_s = row["num_samples"] / 16_000
    want = [(start_s, min(end_s, limit_s)) for start_s, end_s, ids in row["windows"] if ids]
    got = [(segment.start_s, segment.end_s) for segment in result.segments]
    np.testing.assert_allclose(got, want, atol=0.011)
