"""Where the next window begins in sequential mode (transcribe.py of openai/whisper)."""

from collections.abc import Sequence

from headrace.engines.whisper.tokenizer import SpecialTokens

SAMPLES_PER_TIMESTAMP = 320
"""Samples from one timestamp token to the next."""


def next_seek(
    token_ids: Sequence[int], special: SpecialTokens, num_samples: int
) -> tuple[tuple[int, ...], int]:
    """The tokens of a window that stand, and the samples after which the next window begins.

    Text after the last pair of timestamps was cut off by the window's end: the next window begins at that
    pair and says it again. Where the text ends with a single timestamp no speech follows it, and where there
    is no pair all of the window counts.

    Worked example: <0.00> a <2.00><2.00> b gives <0.00> a <2.00> and 2 s.
    """
    marks = [special.is_timestamp(token) for token in token_ids]
    pairs = [i for i in range(1, len(marks)) if marks[i - 1] and marks[i]]
    ends_single = marks[-2:] == [False, True]
    if not pairs or ends_single:
        return tuple(token_ids), num_samples
    kept = tuple(token_ids[: pairs[-1]])
    step = (kept[-1] - special.timestamp_begin) * SAMPLES_PER_TIMESTAMP
    return kept, min(step, num_samples) or num_samples


def unsaid_from(token_ids: Sequence[int], special: SpecialTokens) -> tuple[int, int] | None:
    """The samples of a window at which its text ends and at which, as it says, speech goes on; None where it
    does not say so.

    A text that ends with a pair of timestamps ends where the next would begin.

    Worked example: <0.00> a <2.00><2.50> gives 2 s and 2.5 s, <0.00> a <2.00> gives None.
    """
    if len(token_ids) < 2 or not all(special.is_timestamp(token) for token in token_ids[-2:]):
        return None
    said, next_ = ((token - special.timestamp_begin) * SAMPLES_PER_TIMESTAMP for token in token_ids[-2:])
    return said, next_
