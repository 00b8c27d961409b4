"""What a decoder looks like (ModelConfig) and how the engine runs it (EngineConfig)."""

from dataclasses import dataclass
from typing import Literal

from headrace.engines.errors import ConfigError
from headrace.engines.serialization import Serializable

RopeKind = Literal["default", "linear", "llama3"]
Overlong = Literal["error", "truncate-left", "truncate-right"]
MIN_ROWS = 2
"""Fewest rows of a product: one row alone takes another path through the machine, with other last bits."""

MAX_PAGE_SIZE = 256
"""Most tokens of a page: attention reads the context in segments of whole pages."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig(Serializable):
    """How the engine runs a model."""

    dtype: str = "bfloat16"
    """auto, bfloat16 or float32: weights, activations and KV pages; products accumulate in float32."""
    max_num_seqs: int = 128
    """Rows that decode at the same time."""
    max_num_batched_tokens: int = 1024
    """Prompt tokens of one prefill dispatch, over all its rows."""
    max_model_len: int | None = None
    """Longest prompt plus output of a row, in tokens; the model's own limit where None."""
    page_size: int = 16
    """Tokens of a KV page."""
    num_pages: int | None = None
    """KV pages; chosen from the free memory where None."""
    memory_utilization: float = 0.6
    """Share of the free memory that the KV pages may take where num_pages is None."""
    enable_prefix_caching: bool = True
    """Prompts that begin alike share the KV pages of their beginning."""
    decode_burst: int = 32
    """Most tokens a row that one decode dispatch makes."""
    attention_backend: str = "auto"
    """auto (the fastest that can run), native (C++ kernel, CPUs) or xla (runs everywhere)."""
    deterministic: bool = False
    """Fixed shapes, no preemption: a row's text depends on nothing but the row, at some cost of speed."""
    overlong: Overlong = "error"
    """What becomes of a prompt that does not fit: error, truncate-left or truncate-right."""
    seed: int = 0
    """Job seed, from which the seeds of sampled rows without their own are derived."""
    eos_token_ids: tuple[int, ...] | None = None
    """Tokens that end a text; the model's own where None."""
    bos_token_id: int | None = None
    """Token put before a plain prompt; the tokenizer's own rule where None."""
    pad_token_id: int = 0
    """Token that fills unused places of a batch; never seen by a row."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "page_size", "decode_burst"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, wanted at least 1")
        if self.page_size & (self.page_size - 1) or self.page_size > MAX_PAGE_SIZE:
            raise ConfigError(f"page_size is {self.page_size}, wanted a power of two up to {MAX_PAGE_SIZE}")
        if self.max_num_seqs < MIN_ROWS:
            raise ConfigError(f"max_num_seqs is {self.max_num_seqs}, wanted at least {MIN_ROWS}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len}, wanted at least 2")
        if min(self.token_ids, default=0) < 0:
            raise ConfigError(f"token id {min(self.token_ids)} is negative: token ids begin at 0")
        if self.num_pages is not None and self.num_pages < 2:
            raise ConfigError(f"num_pages is {self.num_pages}, wanted at least 2 (one is the null page)")
        if not 0.0 < self.memory_utilization <= 1.0:
            raise ConfigError(f"memory_utilization is {self.memory_utilization}, wanted a share in (0, 1]")
        if self.attention_backend not in ("auto", "native", "xla"):
            raise ConfigError(f"attention_backend is {self.attention_backend!r}: auto, native or xla")
        if self.overlong not in ("error", "truncate-left", "truncate-right"):
            raise ConfigError(f"overlong is {self.overlong!r}: error, truncate-left or truncate-right")

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every token id that is named here."""
        bos = () if self.bos_token_id is None else (self.bos_token_id,)
        return (*(self.eos_token_ids or ()), *bos, self.pad_token_id)
