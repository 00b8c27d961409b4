"""The static shapes that the engine's programs are compiled for."""

from typing import NamedTuple

from headrace.engines.buckets import growing_buckets, pick_bucket
from headrace.engines.errors import ConfigError
from headrace.engines.llm.attention import SEGMENT_TOKENS
from headrace.engines.llm.batch import BLOCK_TOKENS
from headrace.engines.llm.engine_config import EngineConfig

SMALLEST_DECODE_BUCKET = 8
SMALLEST_PREFILL_BUCKET = 128


class Shapes(NamedTuple):
    """Static shapes of the programs."""

    decode_rows: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    prefill_rows: int
    table_width: int
    burst: int
    speculative_rows: tuple[int, ...] = ()
    """Rows that programs with proposals are made for; none where there is no speculation."""
    has_draft: bool = False
    """Whether a draft model or an EAGLE head proposes."""
    num_stages: int = 1
    """Stages of the pipeline."""

    def only_for(self, num_tokens: int | None, num_seqs: int | None) -> "Shapes":
        """The shapes with the buckets of such a prefill and of so many rows alone.

        Raises:
          ConfigError: a number is larger than the largest bucket.
        """
        rows = num_seqs or 1
        return self._replace(
            prefill_tokens=(_bucket("num_tokens", self.prefill_tokens, num_tokens),) if num_tokens else (),
            decode_rows=(_bucket("num_seqs", self.decode_rows, num_seqs),) if num_seqs else (),
            speculative_rows=tuple(size for size in self.speculative_rows if size >= rows)[:1],
        )


def choose_shapes(config: EngineConfig, max_model_len: int) -> Shapes:
    """The buckets; a single one of each where the engine is deterministic."""
    limits = config.scheduler
    rows = limits.max_num_seqs
    tokens = max(limits.max_num_batched_tokens, BLOCK_TOKENS)
    if not limits.chunked_prefill_enabled:
        tokens = max(tokens, max_model_len)
    segment = -(-max_model_len // SEGMENT_TOKENS) * SEGMENT_TOKENS
    decode_rows = limits.max_num_seq_buckets or growing_buckets(min(SMALLEST_DECODE_BUCKET, rows), rows)
    prefill_tokens = growing_buckets(min(SMALLEST_PREFILL_BUCKET, tokens), tokens)
    if limits.token_buckets:
        prefill_tokens = (*limits.token_buckets[:-1], tokens)
    speculative, num_stages = config.speculative, config.parallel.pipeline_parallel_size
    speculative_rows = growing_buckets(1, min(speculative.disable_by_batch_size, rows))
    return Shapes(
        decode_rows=(rows,) if config.deterministic else decode_rows,
        prefill_tokens=(tokens,) if config.deterministic else prefill_tokens,
        prefill_rows=min(limits.max_concurrent_prefill, rows),
        table_width=segment // config.cache.page_size,
        # In a pipeline the next step begins with a program of the first stage's devices.
        burst=limits.decode_burst if num_stages == 1 else 1,
        num_stages=num_stages,
        speculative_rows=speculative_rows if speculative.method else (),
        has_draft=speculative.use_model(),
    )


def _bucket(name: str, sizes: tuple[int, ...], wanted: int) -> int:
    if not 1 <= wanted <= sizes[-1]:
        raise ConfigError(f"{name} is {wanted}, wanted 1 to {sizes[-1]}")
    return pick_bucket(sizes, wanted)
