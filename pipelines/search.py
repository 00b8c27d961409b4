"""How many texts of a window are followed, drawn and chosen from: one part of a transcription's config."""

from dataclasses import dataclass

from headrace.engines import Serializable


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig(Serializable):
    """Beams and draws of a run; the engine's config checks them."""

    beam_size: int = 1
    """Texts of a window that are followed side by side; 1 is greedy, more are slower and seldom worse."""
    patience: float = 1.0
    """A window's beam search ends with beam_size times so many ended texts."""
    best_of: int = 1
    """Texts of a window that are drawn where it is tried again at a temperature; the likeliest stays."""
    length_penalty: float | None = None
    """Power of (5 + length) / 6 that log-probabilities are divided by (default: by the length itself)."""
