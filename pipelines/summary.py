"""What a run reports: how far it is, and what it did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["tokens", "audio seconds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is, at one moment."""

    rows_done: int
    """Rows with a result, those of earlier runs included."""
    rows_total: int
    """Rows of the whole input."""
    rows_failed: int
    """Rows whose result is an error."""
    units_done: float
    """Tokens generated, or seconds of audio transcribed, earlier runs included."""
    units_per_s: float
    """Rate of this run so far; 0 until something is known."""
    eta_s: float | None
    """Seconds until the end at the present rate, None while unknown."""
    parts_done: int
    """Parts committed, those of earlier runs included."""
    parts_total: int
    """Parts of the whole run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What a finished run did. Rows, errors and units are of the whole output, parts reused included."""

    rows: int
    """Rows of the output."""
    rows_failed: int
    """Rows whose result is an error."""
    errors_by_kind: Mapping[str, int] = field(default_factory=dict)
    """Failed rows by the kind of error."""
    units: float
    """Tokens generated, or seconds of audio transcribed."""
    unit: Unit
    """What `units` counts."""
    rows_run: int
    """Rows that this run computed; the others were there already."""
    units_run: float
    """Units that this run computed."""
    wall_s: float
    """Seconds from the start of the pipeline to the last commit."""
    output: str
    """Directory of the results."""
    parts_total: int
    """Parts of the output."""
    parts_reused: int
    """Parts that an earlier run had committed."""
    model_loads: int
    """Engines loaded by this run, in all its processes."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Ratios of the engines' counters over the whole output, such as speculation_acceptance_rate."""

    @property
    def units_per_s(self) -> float:
        """Units that this run computed a second, model loading included."""
        return self.units_run / self.wall_s if self.wall_s > 0 else 0.0
