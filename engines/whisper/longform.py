"""From the texts of a recording's windows to its segments."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.audio import SAMPLE_RATE, Window
from headrace.engines.whisper.merge import Overlap, TimedWord, find_seam
from headrace.engines.whisper.quality import Attempt
from headrace.engines.whisper.results import Segment, Word
from headrace.engines.whisper.tokenizer import UNSPACED_LANGUAGES, WhisperTokenizer
from headrace.engines.whisper.words import Spoken, TokenTimes, around_pauses, with_punctuation

TOLERANCE_SHARE = 0.2
"""How far two windows' estimates of a word's time may differ, as a share of the time that a piece of text
lasts: words are spread over it by their length."""
MIN_TOLERANCE_S = 1.0
"""Least such difference."""
MAX_TOLERANCE_S = 6.0
"""Largest such difference: that of a window of 30 s without a timestamp inside."""


class WindowText(NamedTuple):
    """A window of a recording and what was decoded from it; None for silence."""

    window: Window
    attempt: Attempt | None
    times: TokenTimes | None = None
    """Times of the attempt's tokens of text, where they were asked for."""
    translation: Attempt | None = None
    """The same in English, where it was asked for."""
    decoded: Window | None = None
    """The window as it was decoded, where `window` is only the part of it whose text stands."""
    pieces: tuple[tuple[int, int], ...] = ()
    """Parts of the recording that the window consists of, in samples, where it leaves some out."""

    def place_s(self, seconds: float, *, is_end: bool = False) -> float:
        """Seconds of the recording that lie so many seconds after the window's start.

        Between two parts a start belongs to the second of them and an end to the first.
        """
        if not self.pieces:
            return self.window.start / SAMPLE_RATE + seconds
        left = seconds * SAMPLE_RATE
        for start, stop in self.pieces:
            if left < stop - start or (is_end and left == stop - start):
                return (start + left) / SAMPLE_RATE
            left -= stop - start
        return self.pieces[-1][1] / SAMPLE_RATE

    @property
    def length_s(self) -> float:
        """Seconds of audio in the window."""
        parts = self.pieces or ((self.window.start, self.window.stop),)
        return sum(stop - start for start, stop in parts) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Piece:
    """What one window says between two timestamps."""

    start_s: float
    end_s: float
    words: tuple[TimedWord, ...]
    attempt: Attempt
    opening: tuple[int, ...] = ()
    """The timestamp token that it starts with, if there is one."""
    closing: tuple[int, ...] = ()
    """The timestamp token that it ends with, if there is one."""


def segments_of(texts: Sequence[WindowText], tokenizer: WhisperTokenizer) -> tuple[Segment, ...]:
    """Segments of a recording in the order of time, overlaps merged, no end past the recording's."""
    merged: list[Piece] = []
    for i, text in enumerate(texts):
        if text.attempt is None:
            continue
        new = _pieces(text, text.attempt, tokenizer)
        if text.times is not None:
            new = _with_times(new, text, text.times)
        if i and texts[i - 1].window.stop > text.window.start:
            near = _split_off_near(merged, text.window)
            new = _join(near, new, _overlap(texts[i - 1].window, text.window, near + new))
        merged += new
    return tuple(_segment(piece, tokenizer) for piece in _in_order(merged) if piece.words)


def translated(texts: Sequence[WindowText]) -> list[WindowText]:
    """The translations of windows as texts of their own; they are of the whole windows, which may overlap."""
    return [
        text._replace(window=text.decoded or text.window, attempt=text.translation, times=None)
        for text in texts
    ]


def text_of(segments: Sequence[Segment], language: str | None) -> str:
    """The segments' texts as one, with single spaces between them where the language has spaces."""
    glue = "" if language in UNSPACED_LANGUAGES else " "
    return glue.join(text for segment in segments if (text := segment.text.strip()))


def _pieces(of: WindowText, attempt: Attempt, tokenizer: WhisperTokenizer) -> list[Piece]:
    """The window's text between its timestamps, in seconds of the recording."""
    special = tokenizer.special
    length_s = of.length_s
    pieces: list[Piece] = []
    start_s, opening, text = 0.0, (), []
    for token in (*attempt.token_ids, None):
        if token is not None and not special.is_timestamp(token):
            text.append(token)
            continue
        now_s = length_s if token is None else min(special.seconds(token), length_s)
        mark = () if token is None else (token,)
        if any(special.is_text(token) for token in text):
            start, end = of.place_s(start_s), of.place_s(max(now_s, start_s), is_end=True)
            end = max(start, end)
            words = _timed(tokenizer.words(text, attempt.language), start, end)
            pieces.append(Piece(start, end, words, attempt, opening, mark))
            mark = ()
        start_s, opening, text = now_s, mark, []
    return pieces


def _timed(
    words: Sequence[tuple[str, tuple[int, ...]]], start_s: float, end_s: float
) -> tuple[TimedWord, ...]:
    """Words with times by their share of the characters."""
    total = sum(len(text) for text, _ in words)
    timed, before = [], 0
    for text, ids in words:
        middle = (before + len(text) / 2) / max(total, 1)
        timed.append(TimedWord(text, ids, start_s + (end_s - start_s) * middle))
        before += len(text)
    return tuple(timed)


def _with_times(pieces: Sequence[Piece], of: WindowText, times: TokenTimes) -> list[Piece]:
    """The pieces with the times of their own words."""
    words = [word for piece in pieces for word in piece.words]
    last = list(itertools.accumulate(len(word.token_ids) for word in words))
    first = [0, *last[:-1]]
    spoken = [Spoken(times.edges_s[a], times.edges_s[b]) for a, b in zip(first, last, strict=True)]
    timed = []
    for i, stretch in enumerate(around_pauses(spoken, times.pauses_s)):
        start_s = of.place_s(stretch.start_s)
        end_s = max(of.place_s(stretch.end_s, is_end=True), start_s)
        timed.append(
            replace(
                words[i],
                time_s=(start_s + end_s) / 2,
                start_s=start_s,
                end_s=end_s,
                probability=sum(times.probability[first[i] : last[i]]) / (last[i] - first[i]),
            )
        )
    own = [timed[count - len(piece.words) : count] for piece, count in _counted(pieces)]
    return [
        replace(piece, words=tuple(words), start_s=words[0].start_s, end_s=words[-1].end_s)
        for piece, words in zip(pieces, own, strict=True)
    ]


def _counted(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, int]]:
    """Each piece with the number of words up to its end."""
    return zip(pieces, itertools.accumulate(len(piece.words) for piece in pieces), strict=True)


def _split_off_near(merged: list[Piece], window: Window) -> list[Piece]:
    """Takes the last pieces that may reach into a window off the list, so that each seam costs the same."""
    limit_s = window.start / SAMPLE_RATE - MAX_TOLERANCE_S
    first = len(merged)
    while first and merged[first - 1].end_s > limit_s:
        first -= 1
    near = merged[first:]
    del merged[first:]
    return near


def _overlap(left: Window, right: Window, pieces: Sequence[Piece]) -> Overlap:
    """What two neighbouring windows share."""
    start_s, stop_s = right.start / SAMPLE_RATE, left.stop / SAMPLE_RATE
    lengths_s = [
        piece.end_s - piece.start_s
        for piece in pieces
        if piece.end_s > start_s and piece.start_s < stop_s and math.isnan(piece.words[0].start_s)
    ]
    tolerance_s = TOLERANCE_SHARE * max(lengths_s, default=0.0)
    return Overlap(
        start_s=start_s,
        stop_s=stop_s,
        seam_s=(right.start + right.stride_left) / SAMPLE_RATE,
        tolerance_s=min(max(tolerance_s, MIN_TOLERANCE_S), MAX_TOLERANCE_S),
    )


def _join(left: list[Piece], right: list[Piece], overlap: Overlap) -> list[Piece]:
    """The pieces of both, without the words that the seam gives to the other side."""
    left_words = [word for piece in left for word in piece.words]
    right_words = [word for piece in right for word in piece.words]
    seam = find_seam(left_words, right_words, overlap)
    return _first_words(left, seam.keep_left) + _without_first_words(right, seam.skip_right)


def _first_words(pieces: list[Piece], count: int) -> list[Piece]:
    kept = []
    for piece in pieces:
        if count >= len(piece.words):
            kept.append(piece)
        elif count > 0:
            end_s = (piece.words[count - 1].time_s + piece.words[count].time_s) / 2
            kept.append(replace(piece, words=piece.words[:count], end_s=end_s, closing=()))
        count -= len(piece.words)
    return kept


def _without_first_words(pieces: list[Piece], count: int) -> list[Piece]:
    kept = []
    for piece in pieces:
        if count <= 0:
            kept.append(piece)
        elif count < len(piece.words):
            start_s = (piece.words[count - 1].time_s + piece.words[count].time_s) / 2
            kept.append(replace(piece, words=piece.words[count:], start_s=start_s, opening=()))
        count -= len(piece.words)
    return kept


def _in_order(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with times that do not go back over a seam."""
    ordered: list[Piece] = []
    reached_s = 0.0
    for piece in pieces:
        start_s = max(piece.start_s, reached_s)
        reached_s = max(piece.end_s, start_s)
        ordered.append(replace(piece, start_s=start_s, end_s=reached_s))
    return ordered


def _segment(piece: Piece, tokenizer: WhisperTokenizer) -> Segment:
    ids = tuple(token for word in piece.words for token in word.token_ids)
    attempt = piece.attempt
    return Segment(
        start_s=round(piece.start_s, 3),
        end_s=round(piece.end_s, 3),
        text=tokenizer.text(ids),
        avg_logprob=attempt.avg_logprob,
        no_speech_prob=attempt.no_speech_prob,
        compression_ratio=attempt.compression_ratio,
        temperature=attempt.temperature,
        words=_words(piece),
        token_ids=piece.opening + ids + piece.closing,
    )


def _words(piece: Piece) -> tuple[Word, ...]:
    """The piece's words with their times inside it; () where the times are not known."""
    if math.isnan(piece.words[0].start_s):
        return ()
    words, reached_s = [], piece.start_s
    for word in piece.words:
        start_s = min(max(word.start_s, reached_s), piece.end_s)
        reached_s = min(max(word.end_s, start_s), piece.end_s)
        words.append(Word(word.text, round(start_s, 3), round(reached_s, 3), round(word.probability, 4)))
    return with_punctuation(words)
