"""What a decoder looks like: the features of its family as fields."""

from dataclasses import dataclass, replace
from typing import Literal

from headrace.engines.errors import ConfigError
from headrace.engines.serialization import Serializable

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
Norm = Literal["rms", "layer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeConfig(Serializable):
    """Rotary position embedding."""

    theta: float = 10_000.0
    """Base of the inverse frequencies."""
    kind: RopeKind = "default"
    """Scaling rule of the frequencies."""
    rotary_dim: int | None = None
    """Dimensions of a head that are rotated, its first ones; all where None."""
    factor: float = 1.0
    """Stretch of the context, for `linear`, `llama3` and `yarn`."""
    original_max_position: int = 8192
    """Context length, in tokens, before the stretch, for `llama3`, `yarn` and `longrope`."""
    attention_factor: float = 1.0
    """Factor of the cosines and sines, for `yarn` and `longrope`."""
    low_freq_factor: float = 1.0
    """`llama3`: wavelengths above original_max_position / low_freq_factor are stretched in full."""
    high_freq_factor: float = 4.0
    """`llama3`: wavelengths below original_max_position / high_freq_factor are left alone."""
    beta_fast: float = 32.0
    """`yarn`: dimensions that turn more often than this over the original context are left alone."""
    beta_slow: float = 1.0
    """`yarn`: dimensions that turn less often than this over the original context are stretched in full."""
    rounds_ramp: bool = True
    """`yarn`: the blend between the two begins and ends at whole dimensions."""
    short_factors: tuple[float, ...] = ()
    """`longrope`: divisor of each inverse frequency in contexts up to original_max_position."""
    long_factors: tuple[float, ...] = ()
    """`longrope`: the same in longer contexts."""
    is_long: bool = False
    """`longrope`: contexts go past original_max_position."""
    frequency_divisors: tuple[float, ...] | None = None
    """Divisor of each inverse frequency where the checkpoint stores them; takes the place of the rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsConfig(Serializable):
    """A mixture of experts in the place of a layer's MLP."""

    num_experts: int
    """Experts of the layer."""
    num_active: int
    """Experts that a token passes through."""
    intermediate_size: int
    """Width of one expert."""
    normalizes_weights: bool
    """The weights of a token's experts are scaled to sum to 1."""

    def __post_init__(self) -> None:
        if not 0 < self.num_active <= self.num_experts:
            raise ConfigError(f"a token passes {self.num_active} experts, the model has {self.num_experts}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerConfig(Serializable):
    """What may differ from layer to layer."""

    rope: RopeConfig | None
    """Position embedding of the layer's attention; None where it has none."""
    window: int | None = None
    """Tokens that a query sees, itself included; all before it where None."""
    experts: ExpertsConfig | None = None
    """Experts in the place of the MLP."""
    has_attention_norm: bool = True
    """What enters the attention is normed; not in the first layer of an EAGLE head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Serializable):
    """Architecture of one decoder."""

    vocab_size: int
    """Rows of the embedding table."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width of the MLP."""
    layers: tuple[LayerConfig, ...]
    """The decoder's layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads; a divisor of num_heads."""
    head_dim: int
    """Width of one head."""
    norm_eps: float
    """Epsilon of the norms."""
    max_position: int
    """Longest context, in tokens, that the checkpoint was made for."""
    norm: Norm = "rms"
    """rms: root mean square with a scale; layer: mean and variance with a scale and a bias."""
    has_qk_norm: bool = False
    """Queries and keys pass an RMS norm of their own before they are rotated."""
    has_post_norms: bool = False
    """Attention and MLP are normed a second time, before they are added to the residual stream."""
    activation: Activation = "silu"
    """Activation of the MLP; `gelu_tanh` is the tanh approximation."""
    is_gated: bool = True
    """The MLP multiplies the activation by a second projection."""
    has_learned_positions: bool = False
    """An embedding of the position, of max_position rows, is added to that of the token."""
    embedding_scale: float = 1.0
    """Factor of the token embeddings."""
    attention_scale: float | None = None
    """Factor of the attention scores; head_dim ** -0.5 where None."""
    attention_soft_cap: float | None = None
    """Attention scores become cap * tanh(score / cap)."""
    logit_soft_cap: float | None = None
    """Logits become cap * tanh(logit / cap)."""
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

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    def for_context(self, max_model_len: int) -> "ModelConfig":
        """The model as it is run where no row grows past `max_model_len` tokens.

        `longrope` has other frequencies in contexts longer than the original one. An engine takes one set for
        all of its rows, so that keys in the pages, shared prefixes and a row's text do not depend on how long
        some row is just then.
        """

        def fit(layer: LayerConfig) -> LayerConfig:
            if layer.rope is None or layer.rope.kind != "longrope":
                return layer
            is_long = max_model_len > layer.rope.original_max_position
            return replace(layer, rope=replace(layer.rope, is_long=is_long))

        return replace(self, layers=tuple(fit(layer) for layer in self.layers))
