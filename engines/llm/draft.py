"""The draft model or EAGLE head that proposes tokens, with its own KV pages under the numbers of the pool.

It sees a row only when it is to propose for it: `lagging` gives what of the rows it has not seen until then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from headrace.engines.errors import ConfigError
from headrace.engines.llm.attention import Backend, choose_backend
from headrace.engines.llm.batch import PackedPrefill, PrefillBatch, unpack_prefill
from headrace.engines.llm.choose import Head, choose_tokens
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.eagle_head import EagleHead
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.forward import Forward
from headrace.engines.llm.kv_cache import KVCache, make_pages
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.programs import BurstArguments
from headrace.engines.llm.request import Sequence
from headrace.engines.llm.speculate import Checker, Progress, Proposal, Speculation, run_burst
from headrace.engines.precision import resolve_dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A model, or an EAGLE head, that proposes tokens for another one."""

    decoder: Decoder | EagleHead
    """The model or head with its weights."""
    config: EngineConfig
    """Its own precision and attention, and the dtype of its pages."""
    is_borrowed: bool
    """Whether its weights are another engine's, who frees them."""
    vocabulary: Mapping[str, int] = field(default_factory=dict)
    """Ids of its tokens by their spelling, without those added to them; none: it has no tokenizer."""

    def check(self, target: ModelConfig, max_model_len: int) -> None:
        """Raises ConfigError where it cannot propose tokens for such a model."""
        own = self.decoder.config
        if isinstance(self.decoder, EagleHead):
            return  # its positions are relative ones, and the rest was checked when it was loaded
        if own.vocab_size != target.vocab_size:
            raise ConfigError(
                f"the draft model has {own.vocab_size} tokens, the model {target.vocab_size}: "
                "take one of the same family"
            )
        if own.max_position < max_model_len:
            raise ConfigError(
                f"the draft model was made for {own.max_position} tokens, max_model_len is {max_model_len}: "
                "lower it"
            )

    def check_vocabulary(self, target: Mapping[str, int]) -> None:
        """Raises ConfigError where ids of both tokenizers stand for other tokens: nothing would be accepted.

        Tokens that were added, which differ within families of models, are in neither.
        """
        spelled = {number: token for token, number in target.items()}
        others = [number for token, number in self.vocabulary.items() if spelled.get(number, token) != token]
        if others:
            first = min(others)
            own = next(token for token, number in self.vocabulary.items() if number == first)
            raise ConfigError(
                f"the draft model has other tokens than the model under {len(others):,} ids, the first is "
                f"{first}: {own!r}, and the model's {spelled[first]!r}: take a draft model of the same family"
            )


@runtime_checkable
class DraftSource(Protocol):
    """A model that is loaded already, and can propose tokens for another one."""

    def as_draft(self) -> Draft: ...


def choose_draft(config: EngineConfig, model: str | DraftSource | None) -> tuple[EngineConfig, Draft | None]:
    """The config with the method that a draft model needs, and the draft where it is loaded already.

    `model` takes the place of the config's draft model, or as a spec of its EAGLE head.

    Raises:
      ConfigError: an EAGLE head that is no spec, or a draft that cannot be one.
    """
    if model is None:
        return config, None
    if config.speculative.use_eagle():
        if not isinstance(model, str):
            raise ConfigError("an EAGLE head is no model of its own: give speculative_model as a spec")
        return replace(config, speculative=config.speculative.replace(speculative_model=model)), None
    spec = model if isinstance(model, str) else None
    chosen = config.speculative.replace(method="draft_model", speculative_model=spec)
    draft = None if isinstance(model, str) else model.as_draft()
    return replace(config, speculative=chosen), draft


class DraftModel:
    """The weights and KV pages of a draft model or an EAGLE head."""

    def __init__(self, draft: Draft, num_pages: int, page_size: int) -> None:
        config, model = draft.config, draft.decoder.config
        is_int8 = config.cache.kv_cache_dtype == "int8"
        dtype = jnp.dtype(jnp.int8) if is_int8 else resolve_dtype(config.dtype)
        self.graph, self.weights = nnx.split(draft.decoder)
        pages = replace(config.cache, page_size=page_size)
        self.backend: Backend = choose_backend(replace(config, cache=pages), model.head_dim)
        self.cache = make_pages(model, num_pages, page_size, dtype, self.backend)
        self.model_config = model
        self.is_eagle = isinstance(draft.decoder, EagleHead)
        self._is_borrowed = draft.is_borrowed

    def follow(self, old: Decoder, new: Decoder) -> None:
        """Takes over the embedding of a model whose weights are changed, where a head shares it."""
        head = nnx.merge(self.graph, self.weights)
        if not isinstance(head, EagleHead) or old.embedding is None or new.embedding is None:
            return
        if head.embedding[...] is old.embedding[...]:
            head.embedding = nnx.Param(new.embedding[...])
            self.weights = nnx.split(head)[1]

    def release(self) -> None:
        """Frees the KV pages, and weights that are its own."""
        for array in jax.tree.leaves((self.cache, () if self._is_borrowed else self.weights)):
            array.delete()


def lagging(
    sequences: list[Sequence], num_tokens: int, num_rows: int, *, ahead: int = 0, again: int = 0
) -> Iterator[PrefillBatch]:
    """Chunks of the tokens that the draft model has not seen, in batches; counts as seen from now on.

    Of a row that has some, the last `again` tokens before them are seen again. `ahead`: see PrefillBatch.
    """
    batch = PrefillBatch([], [], [], [], ahead)
    for sequence in sequences:
        if sequence.num_drafted < sequence.num_computed:
            sequence.num_drafted = max(sequence.num_drafted - again, 0)
        while sequence.num_drafted < sequence.num_computed:
            room = num_tokens - batch.num_tokens
            if room == 0 or len(batch.sequences) == num_rows:
                yield batch
                batch = PrefillBatch([], [], [], [], ahead)
                continue
            length = min(sequence.num_computed - sequence.num_drafted, room)
            batch.starts.append(sequence.num_drafted)
            batch.add(sequence, length, is_last=False)
            sequence.num_drafted += length
    if batch.sequences:
        yield batch


def draft_prefill(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, " L"],
    sizes: PackedPrefill,
) -> KVCache:
    """The pages of a draft model with the keys and values of a prefill. Donates cache."""
    return Forward(nnx.merge(graph, weights), backend).chunks(*unpack_prefill(packed, sizes), cache)[1]


def draft_burst(
    graphs: tuple[nnx.GraphDef, nnx.GraphDef],
    backends: tuple[Backend, Backend],
    weights: tuple[nnx.State, nnx.State],
    cache: tuple[KVCache, KVCache],
    given: BurstArguments,
    num_top: int,
    speculation: Speculation,
) -> tuple[tuple[KVCache, KVCache], Int[Array, "R results"]]:
    """A burst with proposals of a draft model, which stands second everywhere. Donates cache."""
    forward = Forward(nnx.merge(graphs[0], weights[0]), backends[0])
    drafter = Forward(nnx.merge(graphs[1], weights[1]), backends[1])
    checker = Checker.of(forward, given, num_top, speculation)

    return run_burst(checker, partial(_propose, checker, drafter), cache, given.tokens)


def _propose(checker: Checker, drafter: Forward, now: Progress, cache: KVCache) -> tuple[Proposal, KVCache]:
    """The tokens that the draft model chooses one after another, with the noise of their places.

    The last of them is put in, too, so that its key and value are there where all are right.
    """
    rows, size = checker.rows, checker.speculation.num_tokens
    room = checker.room(now.made)

    def step(index: Int[Array, ""], state: tuple) -> tuple:
        token, tokens, cache = state
        is_real = now.is_active & (index < room)
        positions = jnp.where(is_real, rows.position + now.made + index, -1)
        hidden, cache = drafter.singles(rows.page_table, token, positions, cache)
        head = Head(drafter.decoder, hidden, drafter.backend)
        chosen = choose_tokens(head, rows, now.made + index, checker.extras, 0)
        return chosen.tokens, tokens.at[:, index].set(chosen.tokens, mode="drop"), cache

    tokens = jnp.zeros((now.token.shape[0], size), jnp.int32)
    _, tokens, cache = jax.lax.fori_loop(0, size + 1, step, (now.token, tokens, cache))
    return Proposal(tokens, now.is_active), cache
