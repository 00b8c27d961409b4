"""Subtitles and transcripts of timed text, in the formats that players and people read."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

FORMATS = ("txt", "srt", "vtt", "tsv", "json")
"""What `render` writes."""
Format = Literal["txt", "srt", "vtt", "tsv", "json"]
MIN_CUE_S = 0.001
"""Players pass over a cue without length."""


class TimedText(NamedTuple):
    """A stretch of text and its time in seconds."""

    start_s: float
    end_s: float
    text: str
    """As decoded: words begin with their space where the language has spaces."""
    words: tuple["TimedText", ...] = ()
    """The same in words, where their times are known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubtitleStyle:
    """How much text a subtitle shows at once."""

    max_line_width: int | None = None
    """most characters of a line; None: as the segments are"""
    max_line_count: int | None = None
    """most lines of a subtitle; None: as many as a segment fills"""

    def __post_init__(self) -> None:
        for name in ("max_line_width", "max_line_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
        if self.max_line_count is not None and self.max_line_width is None:
            raise ValueError("max_line_count is given without max_line_width: give both")


DEFAULT_STYLE = SubtitleStyle()


def render(segments: Sequence[TimedText], kind: Format, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """The segments as a file of a format: txt a segment a line, tsv in milliseconds, json with all times.

    Raises:
      ValueError: an unknown format.
    """
    if kind == "txt":
        return "".join(f"{segment.text.strip()}\n" for segment in segments)
    if kind == "tsv":
        return _tsv(segments)
    if kind == "json":
        return json.dumps([_record(segment) for segment in segments], ensure_ascii=False, indent=1) + "\n"
    if kind in ("srt", "vtt"):
        return _subtitles(segments, kind, style)
    raise ValueError(f"format is {kind!r}: give one of {', '.join(FORMATS)}")


def cues(segments: Sequence[TimedText], style: SubtitleStyle) -> Iterator[TimedText]:
    """The segments cut so that each fits the style; lines are separated by newlines.

    A word that is longer than a line has a line of its own. Where the times of words are not known they are
    taken for even over the segment's characters.
    """
    for segment in segments:
        if style.max_line_width is None:
            if segment.text.strip():
                yield segment._replace(text=segment.text.strip(), words=())
            continue
        lines = list(_lines(segment.words or _even_words(segment), style.max_line_width))
        count = style.max_line_count or max(len(lines), 1)
        for first in range(0, len(lines), count):
            shown = lines[first : first + count]
            text = "\n".join("".join(word.text for word in line).strip() for line in shown)
            yield TimedText(shown[0][0].start_s, shown[-1][-1].end_s, text)


def _lines(words: Sequence[TimedText], width: int) -> Iterator[list[TimedText]]:
    line: list[TimedText] = []
    for word in words:
        if line and len("".join(each.text for each in (*line, word)).strip()) > width:
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def _even_words(segment: TimedText) -> tuple[TimedText, ...]:
    """The segment's words, or characters where it has no spaces, timed by their share of the characters."""
    text = segment.text.strip()
    parts = [f" {part}" for part in text.split()] if " " in text else list(text)
    total, before, words = max(sum(map(len, parts)), 1), 0, []
    length_s = segment.end_s - segment.start_s
    for part in parts:
        after = before + len(part)
        start_s, end_s = (segment.start_s + length_s * place / total for place in (before, after))
        words.append(TimedText(start_s, end_s, part))
        before = after
    return tuple(words)


def _subtitles(segments: Sequence[TimedText], kind: str, style: SubtitleStyle) -> str:
    import pysubs2

    file = pysubs2.SSAFile()
    for cue in cues(segments, style):
        start = pysubs2.make_time(s=cue.start_s)
        end = pysubs2.make_time(s=max(cue.end_s, cue.start_s + MIN_CUE_S))
        # What is spoken is no markup: braces and tags stay as they are.
        file.append(pysubs2.SSAEvent(start=start, end=end, text=cue.text.replace("\n", "\\N")))
    return file.to_string(kind, keep_ssa_tags=True, keep_html_tags=True)


def _tsv(segments: Sequence[TimedText]) -> str:
    out = io.StringIO()
    out.write("start\tend\ttext\n")
    for segment in segments:
        text = " ".join(segment.text.split())
        out.write(f"{round(segment.start_s * 1000)}\t{round(segment.end_s * 1000)}\t{text}\n")
    return out.getvalue()


def _record(segment: TimedText) -> dict:
    record = {"start_s": segment.start_s, "end_s": segment.end_s, "text": segment.text}
    if segment.words:
        record["words"] = [_record(word) for word in segment.words]
    return record
