"""Where one window's words end and the next window's begin, when the two overlap."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

MIN_MATCH_RATIO = 0.4
"""Least share of the overlap's words that must agree for the seam to follow the words."""
MARGIN_S = 0.2
"""A seam cut by time keeps words this near to it on both sides: a doubled word is better than a lost one."""
SAME_WORD_S = 0.8
"""Equal words on both sides of a seam cut by time are one word when they lie this close."""

_EQUAL, _OTHER, _GAP = 1.0, -0.5, -0.4


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word with an estimate of its time."""

    text: str
    """As decoded, leading space included."""
    token_ids: tuple[int, ...]
    """Its tokens."""
    time_s: float
    """Middle of the word, seconds from the recording's start."""
    start_s: float = math.nan
    """Start where it is known, else NaN."""
    end_s: float = math.nan
    """End where it is known, else NaN."""
    probability: float = math.nan
    """Mean probability of its tokens where it is known, else NaN."""
    key: str = field(init=False)
    """The word without case and punctuation; "" for punctuation alone."""

    def __post_init__(self) -> None:
        text = unicodedata.normalize("NFKC", self.text).casefold()
        object.__setattr__(self, "key", "".join(char for char in text if char.isalnum()))


class Overlap(NamedTuple):
    """The stretch that two neighbouring windows share, in seconds from the recording's start."""

    start_s: float
    stop_s: float
    seam_s: float
    """Where the left window's own part ends and the right window's begins."""
    tolerance_s: float
    """How far apart the two windows' estimates for one word may lie."""


class Seam(NamedTuple):
    """How many words of the left window stay, and how many of the right window go."""

    keep_left: int
    skip_right: int
    by: Literal["words", "time", "none"]


def find_seam(left: Sequence[TimedWord], right: Sequence[TimedWord], overlap: Overlap) -> Seam:
    """The seam of two windows: at a word that both have, else at the seam's time.

    Only words that the overlap's time allows are compared, and a match counts by its share of the overlap's
    words, not by its length: a few chance matches do not join texts that have nothing in common, and a real
    repetition is not taken for an overlap.
    """
    first, last = _candidates(left, right, overlap)
    if first == len(left) or last == 0:
        return Seam(len(left), 0, "none")
    pairs = _align(left[first:], right[:last], overlap)
    inside = min(
        _num_inside([word for word in left[first:] if word.key], overlap),
        _num_inside([word for word in right[:last] if word.key], overlap),
    )
    if pairs and len(pairs) >= MIN_MATCH_RATIO * inside:
        i, j = min(pairs, key=lambda pair: abs(left[first + pair[0]].time_s - overlap.seam_s))
        return Seam(first + i + 1, j + 1, "words")
    return _cut_by_time(left, right, overlap)


def _candidates(left: Sequence[TimedWord], right: Sequence[TimedWord], overlap: Overlap) -> tuple[int, int]:
    """The first word of the left and the end of the right ones that may lie in the overlap."""
    earliest = overlap.start_s - overlap.tolerance_s / 2
    latest = overlap.stop_s + overlap.tolerance_s / 2
    first = next((i for i, word in enumerate(left) if word.time_s >= earliest), len(left))
    last = next((j for j, word in enumerate(right) if word.time_s > latest), len(right))
    return first, last


def _num_inside(words: Sequence[TimedWord], overlap: Overlap) -> int:
    return sum(overlap.start_s <= word.time_s <= overlap.stop_s for word in words)


def _align(left: Sequence[TimedWord], right: Sequence[TimedWord], overlap: Overlap) -> list[tuple[int, int]]:
    """Index pairs of equal words on the best local alignment (Smith and Waterman 1981).

    Of equally good alignments the one whose times agree best is taken: that is what tells a repetition
    from an overlap.
    """
    scores = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    best, best_at = 0.0, (0, 0)
    for i, a in enumerate(left, start=1):
        for j, b in enumerate(right, start=1):
            score = _pair_score(a, b, overlap)
            scores[i][j] = max(
                0.0,
                scores[i - 1][j - 1] + score,
                scores[i - 1][j] + _gap(left[i - 1].key),
                scores[i][j - 1] + _gap(right[j - 1].key),
            )
            if scores[i][j] > best:
                best, best_at = scores[i][j], (i, j)
    pairs = []
    i, j = best_at
    while i and j and scores[i][j] > 0:
        score = _pair_score(left[i - 1], right[j - 1], overlap)
        if scores[i][j] == scores[i - 1][j - 1] + score:
            if score > 0:
                pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif scores[i][j] == scores[i - 1][j] + _gap(left[i - 1].key):
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _pair_score(left: TimedWord, right: TimedWord, overlap: Overlap) -> float:
    """1 for equal words at one time inside the overlap, less where the times do not fit."""
    apart_s = abs(left.time_s - right.time_s)
    if not left.key or left.key != right.key or apart_s > overlap.tolerance_s:
        return _OTHER
    outside_s = max(overlap.start_s - left.time_s, 0.0) + max(right.time_s - overlap.stop_s, 0.0)
    return _EQUAL - (0.75 * apart_s + outside_s) / overlap.tolerance_s


def _gap(key: str) -> float:
    return _GAP if key else 0.0


def _cut_by_time(left: Sequence[TimedWord], right: Sequence[TimedWord], overlap: Overlap) -> Seam:
    keep = sum(word.time_s <= overlap.seam_s + MARGIN_S for word in left)
    skip = sum(word.time_s < overlap.seam_s - MARGIN_S for word in right)
    if keep and skip < len(right):
        before, after = left[keep - 1], right[skip]
        if before.key == after.key and abs(before.time_s - after.time_s) <= SAME_WORD_S:
            skip += 1
    return Seam(keep, skip, "time")
