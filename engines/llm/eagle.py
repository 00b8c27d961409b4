"""A burst with proposals of an EAGLE head, and how the head sees the tokens before.

Proposals are a chain: the head's hidden states and the tokens chosen from them are fed to it again. The keys
and values that it makes so stand in its pages for the time being. Each step therefore begins with the last
K + 1 places once more, K the number of proposals, by the model's own hidden states: a step before has added
no more. So nothing but pages is carried from step to step and from dispatch to dispatch.

Shared pages: the pair of a page's last token has a token of the next page, and so, where prompts part there,
is that of the row that proposed last. It changes proposals, and no text.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from headrace.engines.llm.attend import attend_blocks, attend_even, attend_single, places
from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import PackedPrefill, unpack_prefill
from headrace.engines.llm.choose import choose_tokens
from headrace.engines.llm.eagle_head import EagleHead
from headrace.engines.llm.forward import Forward, split_hidden
from headrace.engines.llm.hidden_pages import HiddenPages
from headrace.engines.llm.kv_cache import KVCache, LayerPages
from headrace.engines.llm.programs import BurstArguments
from headrace.engines.llm.speculate import Checker, Progress, Proposal, Speculation, run_burst

HeadCache = tuple[LayerPages, ...]


def eagle_prefill(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: HeadCache,
    packed: Int[Array, " L"],
    hidden: HiddenPages,
    sizes: PackedPrefill,
) -> HeadCache:
    """The pages of a head with the keys and values of a prefill's places. Donates cache.

    The tokens of `packed` are those after their positions.
    """
    head: EagleHead = nnx.merge(graph, weights)
    rows, chunks = unpack_prefill(packed, sizes)
    where = places(rows.page_table, chunks.token_row, chunks.positions, hidden.page_size)
    states = hidden.read(*where)
    attend = partial(attend_blocks, backend, rows, chunks)
    return head(chunks.tokens, states, jnp.maximum(chunks.positions, 0), cache, attend)[1]


def eagle_burst(
    graphs: tuple[nnx.GraphDef, nnx.GraphDef],
    backends: tuple[Backend, Backend],
    weights: tuple[nnx.State, nnx.State],
    cache: tuple[KVCache, HeadCache],
    given: BurstArguments,
    num_top: int,
    speculation: Speculation,
) -> tuple[tuple[KVCache, HeadCache], Int[Array, "R results"]]:
    """A burst with proposals of a head, which stands second everywhere. Donates cache."""
    forward = Forward(nnx.merge(graphs[0], weights[0]), backends[0])
    checker = Checker.of(forward, given, num_top, speculation)
    drafter = _Drafter(checker, nnx.merge(graphs[1], weights[1]), backends[1])

    return run_burst(checker, drafter.propose, cache, given.tokens)


class _Chain(NamedTuple):
    """Where the proposals of a step stand."""

    token: Int[Array, " R"]
    state: Float[Array, "R E"]  # the head's hidden state of that token's place
    tokens: Int[Array, "R K"]
    cache: HeadCache


class _Drafter(NamedTuple):
    checker: Checker
    head: EagleHead
    backend: Backend

    def propose(self, now: Progress, cache: HeadCache) -> tuple[Proposal, HeadCache]:
        """The tokens that the head leads to one after another, with the noise of their places."""
        size = self.checker.speculation.num_tokens
        state, cache = self._see(now, cache)
        token = self._choose(now, state, jnp.int32(0))
        tokens = jnp.zeros((token.shape[0], size), jnp.int32).at[:, 0].set(token)
        step = partial(self._step, now)
        chain = jax.lax.fori_loop(1, size, step, _Chain(token, state, tokens, cache))
        return Proposal(chain.tokens, now.is_active), chain.cache

    def _see(self, now: Progress, cache: HeadCache) -> tuple[Float[Array, "R E"], HeadCache]:
        """The head's hidden state of each row's last token, after it saw the model's of the places before.

        e.g. 2 proposals and a last token at 9: the states at 6, 7 and 8 with the tokens at 7, 8 and 9
        """
        rows, count = self.checker.rows, self.checker.speculation.num_tokens + 1
        newest = rows.position + now.made
        positions = jnp.maximum(newest - count, 0)[:, None] + jnp.arange(count, dtype=jnp.int32)[None, :]
        following = jnp.minimum(positions + 1, now.history.shape[1] - 1)
        tokens = jnp.take_along_axis(now.history, following, axis=1)
        last = jnp.clip(newest - 1 - positions[:, 0], 0, count - 1)
        is_real = now.is_active[:, None] & (positions < newest[:, None])
        positions = jnp.where(is_real, positions, -1)
        hidden = self._model_states(now, positions)
        attend = partial(attend_even, self.backend, rows.page_table, positions)
        flat = jnp.maximum(positions, 0).reshape(-1)
        states, cache = self.head(tokens.reshape(-1), hidden, flat, cache, attend)
        states = states.reshape(*positions.shape, -1)
        return jnp.take_along_axis(states, last[:, None, None], axis=1)[:, 0], cache

    def _model_states(self, now: Progress, positions: Int[Array, "R C"]) -> Float[Array, "T E"]:
        (stored,) = split_hidden(now.cache)[1]
        num_rows, count = positions.shape
        token_row = jnp.repeat(jnp.arange(num_rows, dtype=jnp.int32), count)
        table = self.checker.rows.page_table
        return stored.read(*places(table, token_row, positions.reshape(-1), stored.page_size))

    def _step(self, now: Progress, index: Int[Array, ""], chain: _Chain) -> _Chain:
        """Goes on with a proposed token: the pair of it and the state before has the place before it."""
        rows = self.checker.rows
        is_real = now.is_active & (index < self.checker.room(now.made))
        positions = jnp.where(is_real, rows.position + now.made + index - 1, -1)
        attend = partial(attend_single, self.backend, rows.page_table, positions)
        state, cache = self.head(chain.token, chain.state, jnp.maximum(positions, 0), chain.cache, attend)
        token = self._choose(now, state, index)
        return _Chain(token, state, chain.tokens.at[:, index].set(token), cache)

    def _choose(self, now: Progress, state: Float[Array, "R E"], index: Int[Array, ""]) -> Int[Array, " R"]:
        checker = self.checker
        head = checker.head(state)
        return choose_tokens(head, checker.rows, now.made + index, checker.extras, 0).tokens
