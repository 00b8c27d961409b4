"""A burst of decode steps each of which checks proposed tokens, and makes as many as are right and one more.

The model's own choice is made at every proposed place, a draw with the noise that this place of this row has
in any case; proposals are kept as far as they are what was chosen. Every token is thus the one that would
have come without proposals, drawn ones too. For a proposal without probabilities this is rejection sampling;
drafts are drawn with the noise of the place, so that they often are the same (arXiv:2408.07978).

Keys and values of places that were refused are written again by the steps that follow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import Proposed, Rows, Sampled, SampledTop, pack_sampled, unpack_rows
from headrace.engines.llm.choose import Chosen, Head, choose_tokens
from headrace.engines.llm.forward import Forward
from headrace.engines.llm.kv_cache import KVCache
from headrace.engines.llm.logit_edits import Extras
from headrace.engines.llm.ngram import look_up
from headrace.engines.llm.programs import BurstArguments, no_tokens


class Speculation(NamedTuple):
    """What is fixed when the program is compiled."""

    num_tokens: int
    """Tokens that are proposed at once."""
    lookup: tuple[int, int]
    """Fewest and most last tokens of a row that are looked for."""
    burst: int
    """Most tokens a row that a dispatch makes."""


class Progress(NamedTuple):
    """Where the rows stand in a burst."""

    step: Int[Array, ""]
    token: Int[Array, " R"]
    made: Int[Array, " R"]
    is_active: Bool[Array, " R"]
    is_held_up: Bool[Array, ""]
    """Whether a row would go on, and the dispatch has no room for more of its tokens."""
    chosen: Chosen  # of all tokens: [R, burst, ...]
    proposed: Proposed
    cache: KVCache
    history: Int[Array, "R L"]
    """The tokens of each row."""


class Proposal(NamedTuple):
    """What may come after the last token of each row."""

    tokens: Int[Array, "R K"]
    is_there: Bool[Array, " R"]


Own = TypeVar("Own")
"""Arrays of who proposes: pages, or nothing."""
Propose = Callable[[Progress, Own], tuple[Proposal, Own]]


def ngram_burst(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    given: BurstArguments,
    num_top: int,
    speculation: Speculation,
) -> tuple[KVCache, Int[Array, "R results"]]:
    """A burst with proposals from the rows' own tokens. Donates cache."""
    checker = Checker.of(Forward(nnx.merge(graph, weights), backend), given, num_top, speculation)

    def propose(now: Progress, nothing: tuple[()]) -> tuple[Proposal, tuple[()]]:
        length = checker.rows.position + now.made + 1
        found = look_up(now.history, length, speculation.num_tokens, speculation.lookup)
        return Proposal(*found), nothing

    (cache, _), results = run_burst(checker, propose, (cache, ()), given.tokens)
    return cache, results


def run_burst(
    checker: "Checker", propose: Propose[Own], cache: tuple[KVCache, Own], tokens: Int[Array, "R L"]
) -> tuple[tuple[KVCache, Own], Int[Array, "R results"]]:
    """Proposes and checks until the burst is over; second in the cache is what belongs to who proposes."""

    def step(state: tuple[Progress, Own]) -> tuple[Progress, Own]:
        proposal, own = propose(*state)
        return checker.check(state[0], proposal), own

    start = (checker.start(cache[0], tokens), cache[1])
    end, own = jax.lax.while_loop(lambda state: checker.goes_on(state[0]), step, start)
    return (end.cache, own), _pack_progress(end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checker:
    """The rows of a burst, and the model that checks what is proposed for them."""

    forward: Forward
    rows: Rows
    bounds: Int[Array, " 2"]
    """Most tokens a row, and the rows below which the burst ends."""
    extras: Extras
    """Masks alone: what else changes logits depends on the tokens before."""
    num_top: int
    speculation: Speculation

    @classmethod
    def of(cls, forward: Forward, given: BurstArguments, num_top: int, speculation: Speculation) -> "Checker":
        """The checker of a burst."""
        return cls(
            forward=forward,
            rows=unpack_rows(given.packed),
            bounds=given.bounds,
            extras=given.extras,
            num_top=num_top,
            speculation=speculation,
        )

    def start(self, cache: KVCache, history: Int[Array, "R L"]) -> Progress:
        """The rows before any token."""
        rows, num_rows = self.rows, self.rows.limit.shape[0]
        none = jnp.zeros_like(rows.limit)
        return Progress(
            step=jnp.int32(0),
            token=rows.token,
            made=none,
            is_active=rows.limit > 0,
            is_held_up=jnp.asarray(False),
            chosen=no_tokens(num_rows, self.speculation.burst, self.num_top),
            proposed=Proposed(none, none),
            cache=cache,
            history=history,
        )

    def goes_on(self, now: Progress) -> Bool[Array, ""]:
        """Whether the burst has another step."""
        num_active = jnp.sum(now.is_active, dtype=jnp.int32)
        wanted = jnp.where(now.step == 0, 1, jnp.maximum(self.bounds[1], 1))
        return (num_active >= wanted) & ~now.is_held_up

    def room(self, made: Int[Array, " R"]) -> Int[Array, " R"]:
        """Tokens that each row may still make in this dispatch."""
        return jnp.minimum(self.rows.limit, self.bounds[0]) - made

    def check(self, now: Progress, proposal: Proposal) -> Progress:
        """The rows after one step."""
        size = self.speculation.num_tokens
        room = self.room(now.made)
        is_proposed = now.is_active & proposal.is_there
        num_proposed = jnp.where(is_proposed, jnp.clip(room - 1, 0, size), 0)
        chosen, cache = self._choose(now, proposal.tokens, num_proposed)
        within = jnp.arange(size + 1, dtype=jnp.int32)[None, :]
        is_right = (chosen.tokens[:, :-1] == proposal.tokens) & (within[:, :-1] < num_proposed[:, None])
        num_right = jnp.sum(jnp.cumprod(is_right.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
        is_stop = jnp.any(chosen.tokens[:, :, None] == self.rows.stop_ids[:, None, :], axis=-1)
        # A row whose first stop is at place s has s + 1 tokens at most; one past the end stands for none.
        first_stop = jnp.where(jnp.any(is_stop, axis=1), jnp.argmax(is_stop, axis=1).astype(jnp.int32), size)
        num_new = jnp.where(now.is_active, jnp.minimum(num_right, first_stop) + 1, 0)
        is_stopped = jnp.any(is_stop & (within < num_new[:, None]), axis=1)
        made = now.made + num_new
        goes_on = now.is_active & ~is_stopped & (made < self.rows.limit)
        last = jnp.take_along_axis(chosen.tokens, jnp.maximum(num_new - 1, 0)[:, None], axis=1)[:, 0]
        return Progress(
            step=now.step + 1,
            token=jnp.where(now.is_active, last, now.token),
            made=made,
            is_active=goes_on & (self.room(made) > 0),
            is_held_up=jnp.any(goes_on & (self.room(made) <= 0)),
            chosen=jax.tree.map(partial(_put, now.made, num_new), now.chosen, chosen),
            proposed=Proposed(
                now.proposed.tokens + num_proposed, now.proposed.steps + now.is_active.astype(jnp.int32)
            ),
            cache=cache,
            history=_put(self.rows.position + now.made + 1, num_new, now.history, chosen.tokens),
        )

    def head(self, hidden: Float[Array, "T E"]) -> Head:
        """The model's output head over hidden states."""
        return Head(self.forward.decoder, hidden, self.forward.backend)

    def _choose(
        self, now: Progress, proposed: Int[Array, "R K"], num_proposed: Int[Array, " R"]
    ) -> tuple[Chosen, KVCache]:
        """The model's choice after the last token of each row and after each proposal: [R, K + 1, ...]."""
        rows, size = self.rows, self.speculation.num_tokens + 1
        within = jnp.arange(size, dtype=jnp.int32)[None, :]
        tokens = jnp.concatenate([now.token[:, None], proposed], axis=1)
        positions = (rows.position + now.made)[:, None] + within
        is_real = now.is_active[:, None] & (within <= num_proposed[:, None])
        positions = jnp.where(is_real, positions, -1)
        hidden, cache = self.forward.even(rows.page_table, tokens, positions, now.cache)
        every = jax.tree.map(lambda array: jnp.repeat(jnp.asarray(array), size, axis=0), (rows, self.extras))
        made = (now.made[:, None] + within).reshape(-1)
        chosen = choose_tokens(self.head(hidden), every[0], made, every[1], self.num_top)
        return jax.tree.map(lambda array: array.reshape(-1, size, *array.shape[1:]), chosen), cache


def _pack_progress(end: Progress) -> Int[Array, "R results"]:
    """What a burst made, as `pack_sampled` packs it."""
    top = None if end.chosen.top is None else SampledTop(*end.chosen.top)
    return pack_sampled(Sampled(end.chosen.tokens, end.chosen.logprobs, end.made, top, end.proposed))


def _put(start: Int[Array, " R"], count: Int[Array, " R"], stored: Array, new: Array) -> Array:
    """The first `count` new values of each row stored from `start` on.

    e.g. start 2, count 2: 1 2 0 0 0 and 7 8 9 -> 1 2 7 8 0
    """
    within = jnp.arange(new.shape[1], dtype=jnp.int32)[None, :]
    row = jnp.arange(new.shape[0], dtype=jnp.int32)[:, None]
    places = jnp.where(within < count[:, None], start[:, None] + within, stored.shape[1])
    return stored.at[row, places].set(new, mode="drop")
