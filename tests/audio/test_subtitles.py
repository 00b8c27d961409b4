"""Timed text in the formats of players: times, line breaks, odd characters."""

import json

import pytest

from headrace.audio.subtitles import FORMATS, SubtitleStyle, TimedText, cues, render

SEGMENTS = [
    TimedText(0.0, 2.5, " And so my fellow Americans,"),
    TimedText(3661.5, 3662.042, " ask <not> {what} your\tcountry & -->"),
]


def test_srt_has_numbers_times_and_text():
    text = render(SEGMENTS, "srt")
    assert text.startswith("1\n00:00:00,000 --> 00:00:02,500\nAnd so my fellow Americans,\n\n2\n")
    assert "01:01:01,500 --> 01:01:02,042\nask <not> {what} your\tcountry & -->" in text


def test_vtt_has_its_header_and_points():
    text = render(SEGMENTS, "vtt")
    assert text.startswith("WEBVTT\n")
    assert "00:00:00.000 --> 00:00:02.500\nAnd so my fellow Americans,\n" in text


def test_txt_and_tsv_have_a_line_a_segment():
    assert render(SEGMENTS, "txt").splitlines()[0] == "And so my fellow Americans,"
    assert render(SEGMENTS, "tsv").splitlines() == [
        "start\tend\ttext",
        "0\t2500\tAnd so my fellow Americans,",
        "3661500\t3662042\task <not> {what} your country & -->",
    ]


def test_json_has_words():
    words = (TimedText(0.0, 0.5, " a"), TimedText(0.5, 1.0, " b"))
    (record,) = json.loads(render([TimedText(0.0, 1.0, " a b", words)], "json"))
    assert [word["text"] for word in record["words"]] == [" a", " b"]


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_said_gives_a_file(kind: str):
    assert render([], kind) == render([], kind)  # type: ignore[arg-type]


def test_lines_are_no_wider_than_wanted_and_keep_every_word():
    text = " one two three four five six seven eight nine ten"
    words = tuple(TimedText(i, i + 1.0, f" {word}") for i, word in enumerate(text.split()))
    style = SubtitleStyle(max_line_width=10, max_line_count=2)
    for segment in (TimedText(0.0, 10.0, text), TimedText(0.0, 10.0, text, words)):
        shown = list(cues([segment], style))
        assert all(len(line) <= 10 for cue in shown for line in cue.text.split("\n"))
        assert all(len(cue.text.split("\n")) <= 2 for cue in shown)
        assert " ".join(cue.text.replace("\n", " ") for cue in shown) == text.strip()
        times = [time for cue in shown for time in (cue.start_s, cue.end_s)]
        assert times == sorted(times)
        assert (times[0], times[-1]) == (0.0, pytest.approx(10.0))
    assert next(cue.end_s for cue in cues([TimedText(0.0, 10.0, text, words)], style)) == 4.0


def test_languages_without_spaces_are_cut_at_characters():
    (first, second) = cues(
        [TimedText(0.0, 8.0, "自定义语音提供")], SubtitleStyle(max_line_width=4, max_line_count=1)
    )
    assert (first.text, second.text) == ("自定义语", "音提供")


def test_a_word_longer_than_a_line_has_its_own():
    shown = list(cues([TimedText(0.0, 3.0, " a incomprehensibilities b")], SubtitleStyle(max_line_width=5)))
    assert shown[0].text == "a\nincomprehensibilities\nb"


def test_a_count_without_a_width_is_refused():
    with pytest.raises(ValueError, match="max_line_width"):
        SubtitleStyle(max_line_count=2)
    with pytest.raises(ValueError, match="at least 1"):
        SubtitleStyle(max_line_width=0)
