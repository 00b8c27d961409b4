"""Model specs, the files behind them, and one face for every checkpoint layout."""

from headrace.engines.checkpoints.checkpoint import Checkpoint, open_checkpoint, open_without_weights
from headrace.engines.checkpoints.gguf_families import FAMILIES as GGUF_FAMILIES
from headrace.engines.checkpoints.resolve import LocalModel, resolve_model
from headrace.engines.checkpoints.spec import DEMO_MODELS

__all__ = [
    "DEMO_MODELS",
    "GGUF_FAMILIES",
    "Checkpoint",
    "LocalModel",
    "open_checkpoint",
    "open_without_weights",
    "resolve_model",
]
