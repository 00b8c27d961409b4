"""What a decoder looks like."""

from dataclasses import dataclass
from typing import Literal

from headrace.engines.errors import ConfigError
from headrace.engines.serialization import Serializable

RopeKind = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeConfig(Serializable):
    """Rotary position embedding."""

    theta: float = 10_000.0
    """Base of the inverse frequencies."""
    kind: RopeKind = "default"
    """Scaling rule of the frequencies."""
    factor: float = 1.0
    """Stretch of the context, for `linear` and `llama3`."""
    low_freq_factor: float = 1.0
    """`llama3`: wavelengths above original_max_position / low_freq_factor are stretched in full."""
    high_freq_factor: float = 4.0
    """`llama3`: wavelengths below original_max_position / high_freq_factor are left alone."""
    original_max_position: int = 8192
    """`llama3`: context length, in tokens, before the stretch."""
    frequency_divisors: tuple[float, ...] | None = None
    """Divisor of each inverse frequency where the checkpoint stores them; takes the place of the rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Serializable):
    """Architecture of one decoder."""

    vocab_size: int
    """Rows of the embedding table."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width of the MLP."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads; a divisor of num_heads."""
    head_dim: int
    """Width of one head."""
    norm_eps: float
    """Epsilon of the RMS norms."""
    max_position: int
    """Longest context, in tokens, that the checkpoint was made for."""
    rope: RopeConfig
    """Position embedding."""
    tie_embeddings: bool = False
    """The output head is the embedding table."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    output_bias: bool = False
    """A bias on the attention's output projection."""
    mlp_bias: bool = False
    """Biases on the MLP's projections."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} kv heads evenly"
            )
