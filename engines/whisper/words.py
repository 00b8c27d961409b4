"""Times of tokens and words from what the decoder looked at."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.engines.whisper.results import Word

SECONDS_PER_FRAME = 0.02
"""Time from one encoder position to the next."""
SNAP_S = 0.4
"""How far from a border between words, as the decoder saw it, a pause may lie that is that border."""
OPENING = frozenset("\"'“¿([{-")
"""Punctuation that belongs to the word after it."""


class TokenTimes(NamedTuple):
    """When each token of a window's text is spoken, and how likely it was."""

    edges_s: tuple[float, ...]
    """Start of each token and the end of the last, seconds from the window's start; they do not go back."""
    probability: tuple[float, ...]
    """Of each token, among the tokens of text."""
    pauses_s: tuple[tuple[float, float], ...] = ()
    """Start and end of the stretches without sound, in the same seconds."""


class Spoken(NamedTuple):
    """A word's stretch of time, in seconds."""

    start_s: float
    end_s: float


def token_times(
    frames: np.ndarray, probability: np.ndarray, num_prompt: int, num_text: int, length_s: float
) -> TokenTimes:
    """Times of the num_text tokens that follow num_prompt of prompt, from what each position looks at.

    The last position of the prompt, <|notimestamps|>, looks at where the first token of text begins, and the
    last token of text at where the text ends.
    """
    rows = frames[num_prompt - 1 : num_prompt + num_text, : max(1, round(length_s / SECONDS_PER_FRAME))]
    starts = first_frames(-rows.astype(np.float64))
    edges = np.minimum(starts * SECONDS_PER_FRAME, length_s)
    return TokenTimes(
        tuple(round(float(edge), 3) for edge in edges),
        tuple(float(p) for p in probability[num_prompt - 1 : num_prompt - 1 + num_text]),
    )


def first_frames(cost: np.ndarray) -> np.ndarray:
    """For each row, the first column on the cheapest path from the first cell to the last: [rows].

    A path goes on by one row, one column or both (dynamic time warping). The cost of the best path to each
    cell of a row is a running minimum over the row, once the row's own costs are summed up, so that no cell
    is visited from Python.
    """
    num_rows, num_columns = cost.shape
    best = np.full((num_rows + 1, num_columns + 1), np.inf)
    best[0, 0] = 0.0
    for row in range(num_rows):
        entered = np.minimum(best[row, :-1], best[row, 1:])
        before = np.concatenate([[0.0], np.cumsum(cost[row])])
        best[row + 1, 1:] = before[1:] + np.minimum.accumulate(entered - before[:-1])
    first = np.zeros(num_rows, np.int64)
    row, column = num_rows, num_columns
    while row > 0 and column > 0:
        first[row - 1] = column - 1
        diagonal, above, left = best[row - 1, column - 1], best[row - 1, column], best[row, column - 1]
        if diagonal <= above and diagonal <= left:
            row, column = row - 1, column - 1
        elif above <= left:
            row -= 1
        else:
            column -= 1
    return first


def around_pauses(words: Sequence[Spoken], pauses_s: Sequence[tuple[float, float]]) -> list[Spoken]:
    """The words' stretches with their borders moved to the pauses between them.

    Attention is spread over some tenths of a second, and a pause falls to the word before or after it. The
    pause nearest to a border, within SNAP_S and between the middles of its two words, is that border; one
    that the border lies in may take more of the two words, but not all of one.
    """
    if not words:
        return []
    starts, ends = [word.start_s for word in words], [word.end_s for word in words]
    middles = [(word.start_s + word.end_s) / 2 for word in words]
    for border in range(len(words) + 1):
        earliest = middles[border - 1] if border else -np.inf
        latest = middles[border] if border < len(words) else np.inf
        near_s = words[border].start_s if border < len(words) else words[-1].end_s
        begun = words[border - 1].start_s if border else -np.inf
        ended = words[border].end_s if border < len(words) else np.inf
        around = [pause for pause in pauses_s if begun < pause[0] <= near_s <= pause[1] < ended]
        pause = around[0] if around else _nearest(pauses_s, near_s, (earliest, latest))
        if pause is None:
            continue
        if border:
            ends[border - 1] = pause[0]
        if border < len(words):
            starts[border] = pause[1]
    return [Spoken(start, max(start, end)) for start, end in zip(starts, ends, strict=True)]


def _nearest(
    pauses_s: Sequence[tuple[float, float]], near_s: float, between_s: tuple[float, float]
) -> tuple[float, float] | None:
    """The pause nearest to a time, if one is near and lies between two others."""

    def distance(pause: tuple[float, float]) -> float:
        return max(pause[0] - near_s, near_s - pause[1], 0.0)

    inside = [pause for pause in pauses_s if between_s[0] <= pause[0] and pause[1] <= between_s[1]]
    best = min(inside, key=distance, default=None)
    return best if best is not None and distance(best) <= SNAP_S else None


def with_punctuation(words: Sequence[Word]) -> tuple[Word, ...]:
    """The words, punctuation that stands alone joined to the word before it, opening one to the one after."""
    joined: list[Word] = []
    for word in words:
        mark = word.word.strip()
        is_opening = bool(joined) and all(char in OPENING for char in joined[-1].word.strip())
        is_mark = bool(mark) and not any(char.isalnum() for char in mark)
        if joined and (is_opening or (is_mark and not all(char in OPENING for char in mark))):
            joined[-1] = _join(joined[-1], word)
        else:
            joined.append(word)
    return tuple(joined)


def _join(first: Word, second: Word) -> Word:
    """One word of two; times and probability are those of the one that has letters."""
    spoken = second if any(char.isalnum() for char in second.word) else first
    return spoken._replace(word=first.word + second.word)
