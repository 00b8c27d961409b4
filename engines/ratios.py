"""Ratios of an engine's counters, worked out wherever counters are shown.

Counters of several engines, chunks or workers, or what they have gained in a while, may be added up. Ratios
may not: they are always those of the sums.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Ratio(NamedTuple):
    """A figure that is one sum of counters over another."""

    part: tuple[str, ...]
    """Counters above the line, added up."""
    whole: str
    """The counter below it."""
    text: str
    """What the figure says, in a few words."""
    form: str
    """How the figure is written."""
    label: str
    """What stands behind the figure in a summary."""


RATIOS: Mapping[str, Ratio] = {
    "speculation_acceptance_rate": Ratio(
        ("accepted_tokens",),
        "draft_tokens",
        "Share of the proposed tokens that the model accepted",
        "{:.0%}",
        "of the proposed tokens accepted",
    ),
    "speculation_tokens_per_step": Ratio(
        ("accepted_tokens", "speculative_steps"),
        "speculative_steps",
        "Tokens of a row in a step with proposals, 1 without: by so much there are fewer steps",
        "{:.2f}",
        "tokens a step with proposals",
    ),
    "speculation_speed_up": Ratio(
        ("without_speculation_s",),
        "speculative_s",
        "Tokens a second of decoding with proposals over those of as many rows now and then without",
        "{:.2f}",
        "times as fast as without proposals",
    ),
}
"""The ratios by name. Fewer steps are not as much less time: a step with proposals takes longer."""


def ratios(counters: Mapping[str, float]) -> dict[str, float]:
    """The ratios of these counters, or of what they gained; those of which nothing was counted are left out.

    e.g. 60 accepted of 80 draft tokens in 40 steps: an acceptance rate of 0.75, 2.5 tokens a step
    """
    found = {}
    for name, ratio in RATIOS.items():
        whole = counters.get(ratio.whole, 0.0)
        if whole > 0:
            found[name] = sum(counters.get(part, 0.0) for part in ratio.part) / whole
    return found


def with_ratios(counters: Mapping[str, float]) -> dict[str, float]:
    """The counters with their ratios, for a reader: nothing to be added up."""
    return {**counters, **ratios(counters)}
