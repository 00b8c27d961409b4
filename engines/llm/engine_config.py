"""How the engine runs a model: scheduling, KV pages, compilation, and the one config that joins them."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from headrace.engines.compilation_config import CompilationConfig
from headrace.engines.config_fields import from_flat
from headrace.engines.errors import ConfigError
from headrace.engines.llm.speculative_config import SpeculativeConfig
from headrace.engines.mesh import ParallelConfig
from headrace.engines.quantization import TextQuantization
from headrace.engines.serialization import Serializable

Overlong = Literal["error", "truncate-left", "truncate-right"]
Policy = Literal["fcfs", "priority"]
AttentionBackend = Literal["auto", "native", "xla", "pallas-gpu", "pallas-tpu"]
KVCacheDtype = Literal["auto", "int8"]
MIN_ROWS = 2
"""Fewest rows of a product: one row alone takes another path through the machine, with other last bits."""

MAX_PAGE_SIZE = 256
"""Most tokens of a page: attention reads the context in segments of whole pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig(Serializable):
    """Which rows a dispatch works on."""

    max_num_seqs: int = 256
    """Rows that decode at the same time."""
    max_num_batched_tokens: int = 1024
    """Prompt tokens of one prefill dispatch, over all its rows."""
    max_model_len: int | None = None
    """Longest prompt plus output of a row, in tokens (default: the model's own limit)."""
    policy: Policy = "fcfs"
    """Order of waiting rows: fcfs (as they came) or priority (lowest number first, then as they came)."""
    look_ahead: int = 256
    """Waiting rows that are put in order together, by shared beginnings and length (1: as they came)."""
    look_past: int = 64
    """Later rows that may be admitted before one whose KV pages are not free; 0: strictly in order."""
    chunked_prefill_enabled: bool = True
    """Cut prompts that do not fit into a dispatch; else a dispatch takes whole prompts, however long."""
    prefill_chunk_size: int | None = None
    """Most prompt tokens of one row in a dispatch (default: all that fit)."""
    long_prefill_token_threshold: int = 0
    """Prompts with more uncomputed tokens than this are long: so many are computed a dispatch; 0: off."""
    max_concurrent_prefill: int = 32
    """Rows whose prompts are computed at the same time."""
    max_num_seq_buckets: tuple[int, ...] = ()
    """Rows that decode programs are made for, up to max_num_seqs (default: 8, 32, 128 and so on)."""
    token_buckets: tuple[int, ...] = ()
    """Tokens that prefill programs are made for, up to max_num_batched_tokens (default: 128, 512, ...)."""
    decode_burst: int = 32
    """Most tokens a row that one decode dispatch makes."""
    token_safety_margin: int = 16
    """Tokens a running row that admission keeps free for it to grow into."""
    async_scheduling: bool = True
    """Launch a dispatch before the results of the one before have been dealt with."""
    dispatches_in_flight: int = 2
    """Most dispatches that are launched and not fetched, with async_scheduling."""
    max_waiting: int = 4096
    """Requests that may wait: who submits more has to wait, too."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "decode_burst", "look_ahead", "max_concurrent_prefill"):
            _require_at_least(name, getattr(self, name), 1)
        for name in ("dispatches_in_flight", "max_waiting"):
            _require_at_least(name, getattr(self, name), 1)
        for name in ("look_past", "long_prefill_token_threshold", "token_safety_margin"):
            _require_at_least(name, getattr(self, name), 0)
        _require_buckets("max_num_seq_buckets", self.max_num_seq_buckets, MIN_ROWS, self.max_num_seqs)
        _require_buckets("token_buckets", self.token_buckets, 1, self.max_num_batched_tokens)
        if self.prefill_chunk_size is not None:
            _require_at_least("prefill_chunk_size", self.prefill_chunk_size, 1)
        _require_choice("policy", self.policy, ("fcfs", "priority"))
        _require_at_least("max_num_seqs", self.max_num_seqs, MIN_ROWS)
        if self.max_model_len is not None:
            _require_at_least("max_model_len", self.max_model_len, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig(Serializable):
    """The pages of keys and values."""

    page_size: int = 0
    """Tokens of a KV page (default: 32, or 64 of int8, whose heads lie in 4 KiB of a page then)."""
    num_pages: int | None = None
    """KV pages (default: as many as the memory allows and are of use)."""
    hbm_utilization: float = 0.6
    """Share of the free memory that the KV pages may take where num_pages is not given."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """auto (the dtype of the activations) or int8, with a scale for each head of each token."""
    enable_prefix_caching: bool = True
    """Prompts that begin alike share the KV pages of their beginning."""
    spare_page_share: float = 0.02
    """Share of the KV pages that admission keeps free for running rows to grow into."""

    def __post_init__(self) -> None:
        if self.page_size == 0:
            object.__setattr__(self, "page_size", 64 if self.kv_cache_dtype == "int8" else 32)
        if self.page_size < 1 or self.page_size & (self.page_size - 1) or self.page_size > MAX_PAGE_SIZE:
            raise ConfigError(f"page_size is {self.page_size}, wanted a power of two up to {MAX_PAGE_SIZE}")
        if self.num_pages is not None and self.num_pages < 2:
            raise ConfigError(f"num_pages is {self.num_pages}, wanted at least 2 (one is the null page)")
        _require_choice("kv_cache_dtype", self.kv_cache_dtype, ("auto", "int8"))
        if not 0.0 < self.hbm_utilization <= 1.0:
            raise ConfigError(f"hbm_utilization is {self.hbm_utilization}, wanted a share in (0, 1]")
        if not 0.0 <= self.spare_page_share < 1.0:
            raise ConfigError(f"spare_page_share is {self.spare_page_share}, wanted a share in [0, 1)")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig(Serializable):
    """How the engine runs a model."""

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Which rows a dispatch works on."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """The pages of keys and values."""
    compilation: CompilationConfig = field(default_factory=CompilationConfig)
    """How programs are compiled, and where they are kept."""
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    """How tokens are proposed, for the model to check several at once."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """The devices that the model is spread over."""
    dtype: str = "bfloat16"
    """auto, bfloat16 or float32: weights, activations and KV pages; products accumulate in float32."""
    quantization: TextQuantization | None = None
    """int8: the weights of products, made at load time with a scale for each output; int16: with 13 bits and
    a scale for each 128 inputs, on CPUs (default: none)."""
    attention_backend: AttentionBackend = "auto"
    """auto (native, else xla), native (C++, CPUs), xla (everywhere), pallas-gpu or pallas-tpu (of jax)."""
    deterministic: bool = False
    """Fixed shapes: a row's text depends on nothing but the row, at some cost of speed."""
    use_random_weights: bool = False
    """Reads no weights and makes some up, for runs that try sizes and speed; a config.json is enough then."""
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
        if min(self.token_ids, default=0) < 0:
            raise ConfigError(f"token id {min(self.token_ids)} is negative: token ids begin at 0")
        if self.quantization is not None:
            _require_choice("quantization", self.quantization, get_args(TextQuantization))
        _require_choice("attention_backend", self.attention_backend, get_args(AttentionBackend))
        _require_choice("overlong", self.overlong, ("error", "truncate-left", "truncate-right"))

        self._check_parallel()
        if self.deterministic and self.speculative.method is not None:
            raise ConfigError(
                "deterministic texts and speculation do not go together: it goes on and off with the number "
                "of rows, and with it the last bits of a row's logits; leave one of them out"
            )

    def _check_parallel(self) -> None:
        if self.speculative.use_model() and not self.parallel.is_default:
            wanted = "an EAGLE head" if self.speculative.use_eagle() else "a draft model"
            raise ConfigError(
                f"{wanted} and its target run on one device: take the method ngram, or leave the "
                "parallel sizes and devices out"
            )
        if self.speculative.method is not None and self.parallel.pipeline_parallel_size > 1:
            raise ConfigError(
                "a pipeline makes one step a dispatch, and proposals are checked in bursts: leave the "
                "speculative method or pipeline_parallel_size out"
            )

    @classmethod
    def of(cls, **options: Any) -> "EngineConfig":
        """The config with these options, whichever of its parts they belong to.

        e.g. `EngineConfig.of(dtype="float32", max_num_seqs=8, page_size=32)`

        Raises:
          TypeError: no part has such an option.
        """
        return from_flat(cls, options)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every token id that is named here."""
        bos = () if self.bos_token_id is None else (self.bos_token_id,)
        return (*(self.eos_token_ids or ()), *bos, self.pad_token_id)


def _require_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} is {value}, wanted at least {least}")


def _require_buckets(name: str, sizes: tuple[int, ...], least: int, most: int) -> None:
    """Rising sizes the last of which is the limit; none at all are fine."""
    is_rising = all(before < after for before, after in itertools.pairwise((least - 1, *sizes)))
    if sizes and not (is_rising and sizes[-1] == most):
        raise ConfigError(f"{name} is {sizes}, wanted rising sizes from {least} that end with {most}")


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, wanted one of {', '.join(choices)}")
