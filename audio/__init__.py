"""Decoding, resampling, log-mel and windows of audio; knows nothing of models, rows or Beam."""

from headrace.audio.errors import AudioError, HeadraceError

__all__ = ["AudioError", "HeadraceError"]
