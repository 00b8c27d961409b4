"""Texts of windows become segments of the recording."""

import pytest

from headrace.audio import Window
from headrace.engines.whisper.longform import WindowText, segments_of, text_of
from headrace.engines.whisper.quality import Attempt
from headrace.engines.whisper.tokenizer import WhisperTokenizer

RATE = 16_000


def window(start_s: float, stop_s: float, left_s: float = 0.0, right_s: float = 0.0) -> Window:
    return Window(*(round(seconds * RATE) for seconds in (start_s, stop_s, left_s, right_s)))


def attempt(tokenizer: WhisperTokenizer, *parts: float | str, language: str = "en") -> Attempt:
    """A try that gave these timestamps and texts."""
    ids: list[int] = []
    for part in parts:
        if isinstance(part, str):
            ids += tokenizer._tokenizer.backend.encode(part, add_special_tokens=False).ids
        else:
            ids.append(tokenizer.special.timestamp_begin + round(part / 0.02))
    return Attempt(
        token_ids=tuple(ids),
        text=tokenizer.text(ids),
        avg_logprob=-0.2,
        no_speech_prob=0.0,
        temperature=0.0,
        language=language,
        language_probability=None,
        with_timestamps=any(not isinstance(part, str) for part in parts),
        ended=True,
    )


def test_timestamps_make_segments(english: WhisperTokenizer):
    tried = attempt(english, 0.0, " One two.", 2.0, 2.5, " Three.", 4.0)
    segments = segments_of([WindowText(window(0, 5), tried)], english)
    assert [(s.start_s, s.end_s, s.text) for s in segments] == [
        (0.0, 2.0, " One two."),
        (2.5, 4.0, " Three."),
    ]
    assert tuple(token for s in segments for token in s.token_ids) == tried.token_ids


def test_text_without_timestamps_spans_its_window(english: WhisperTokenizer):
    tried = attempt(english, " Hello there.")
    (segment,) = segments_of([WindowText(window(0, 3.5), tried)], english)
    assert (segment.start_s, segment.end_s, segment.text) == (0.0, 3.5, " Hello there.")


def test_a_missing_end_is_the_end_of_the_audio(english: WhisperTokenizer):
    tried = attempt(english, 0.0, " One.", 2.0, 2.0, " And then")
    segments = segments_of([WindowText(window(0, 12.5), tried)], english)
    assert (segments[-1].start_s, segments[-1].end_s) == (2.0, 12.5)


def test_no_end_lies_past_the_audio(english: WhisperTokenizer):
    tried = attempt(english, 0.0, " One.", 29.98)
    (segment,) = segments_of([WindowText(window(0, 12.5), tried)], english)
    assert segment.end_s == 12.5


def test_one_timestamp_between_two_texts_ends_and_begins(english: WhisperTokenizer):
    tried = attempt(english, 0.0, " One.", 2.0, " Two.", 4.0)
    segments = segments_of([WindowText(window(0, 5), tried)], english)
    assert [(s.start_s, s.end_s) for s in segments] == [(0.0, 2.0), (2.0, 4.0)]


def test_silent_windows_give_nothing(english: WhisperTokenizer):
    tried = attempt(english, 0.0, " One.", 2.0)
    texts = [
        WindowText(window(0, 30, right_s=5), None),
        WindowText(window(20, 50, 5, 5), tried),
        WindowText(window(40, 60, left_s=5), None),
    ]
    (segment,) = segments_of(texts, english)
    assert (segment.start_s, segment.end_s) == (20.0, 22.0)
    assert segments_of([WindowText(window(0, 30), None)], english) == ()


def test_a_sentence_over_a_border_is_kept_once(english: WhisperTokenizer):
    first = attempt(english, 0.0, " Start here.", 20.0, 20.0, " The middle part goes over the border", 30.0)
    second = attempt(english, 0.0, " the middle part goes over the border and on.", 12.0, 12.0, " End.", 14.0)
    texts = [WindowText(window(0, 30, right_s=5), first), WindowText(window(20, 50, left_s=5), second)]
    segments = segments_of(texts, english)
    assert text_of(segments, "en") == "Start here. The middle part goes over the border and on. End."
    ends = [time for s in segments for time in (s.start_s, s.end_s)]
    assert ends == sorted(ends)


def test_wide_strides_keep_every_word_once(english: WhisperTokenizer):
    words = [f" w{chr(97 + i // 10)}{chr(97 + i % 10)}" for i in range(60)]
    spoken = [(i + 0.5, word) for i, word in enumerate(words)]
    texts = []
    for start in range(0, 40, 4):  # windows of 24 s, 10 s of stride on both sides
        inside = [word for time_s, word in spoken if start <= time_s < start + 24]
        tried = attempt(english, 0.0, "".join(inside), 24.0)
        texts.append(
            WindowText(window(start, start + 24, 10 if start else 0, 10 if start < 36 else 0), tried)
        )
    assert text_of(segments_of(texts, english), "en") == "".join(words).strip()


@pytest.mark.parametrize(("language", "text"), [("en", "One. Two."), ("ja", "One.Two.")])
def test_spaces_between_windows_go_by_the_language(language: str, text: str, english: WhisperTokenizer):
    texts = [
        WindowText(window(0, 10), attempt(english, "One.", language=language)),
        WindowText(window(10, 20), attempt(english, "Two.", language=language)),
    ]
    assert text_of(segments_of(texts, english), language) == text
