"""Pipeline stages before the last one: each runs its layers and hands the residual stream to the next.

A dispatch is a program a stage, one after another; only the last stage, which has the output head, gives
tokens. The activations go from devices to devices, never by way of the host.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import PackedPrefill, unpack_prefill, unpack_rows
from headrace.engines.llm.forward import Forward
from headrace.engines.llm.kv_cache import KVCache, copy_pages
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.partition import Layout
from headrace.engines.llm.variants import COPY, ENTER_PREFILL, StageNumber
from headrace.engines.program_store import program_signature
from headrace.engines.programs import ProgramKey, Programs


class Stage(NamedTuple):
    """The layers of one pipeline stage, and where they lie; a model without a pipeline is one stage."""

    decoder: Decoder
    layout: Layout


class EarlierStage:
    """Weights, KV pages and programs of a stage that is not the last."""

    def __init__(self, stage: Stage, number: StageNumber, cache: KVCache, backend: Backend) -> None:
        graph, self.weights = nnx.split(stage.decoder)
        self.cache = cache
        self.layout = stage.layout
        self.number = number
        self._model = stage.decoder.config
        self._shapes = jax.tree.map(shape_of, (self.weights, cache))
        results = (self.layout.pages, self.layout.replicated)
        self._copy = jax.jit(copy_pages, donate_argnames="cache", out_shardings=self.layout.pages)
        prefill, decode = partial(enter_prefill, graph, backend), partial(enter_decode, graph, backend)
        self._prefill = jax.jit(
            prefill, donate_argnames="cache", static_argnames="sizes", out_shardings=results
        )
        self._decode = jax.jit(decode, donate_argnames="cache", out_shardings=results)

    def lower(
        self, key: ProgramKey, arguments: Mapping[str, Any], sizes: PackedPrefill | None
    ) -> jax.stages.Lowered:
        """The traced program of a bucket for these arguments."""
        weights, cache = self._shapes
        if key.kind == COPY.kind:
            return self._copy.lower(cache=cache, **arguments)
        if key.kind == ENTER_PREFILL:
            return self._prefill.lower(weights, cache=cache, sizes=sizes, **arguments)
        return self._decode.lower(weights, cache=cache, **arguments)

    def entering(self, num_tokens: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The shape of what the stage before hands over; nothing for the first stage."""
        return entering_shape(self.layout, num_tokens, self._model.hidden_size)

    def run(
        self, programs: Programs, kind: str, size: int, arguments: Mapping[str, Any]
    ) -> Float[Array, "T E"]:
        """Runs the stage's layers; the residual stream after them."""
        program = programs.get(ProgramKey(kind, size, self.number), arguments)
        self.cache, residual = program(self.weights, cache=self.cache, **arguments)
        return residual

    def copy_pages(self, programs: Programs, pages: np.ndarray) -> None:
        """Copies KV pages."""
        program = programs.get(COPY._replace(variant=self.number), {"pages": pages})
        self.cache = program(cache=self.cache, pages=pages)

    def update_weights(self, decoder: Decoder) -> None:
        """Puts other weights of the same shapes in the place of those that are there."""
        weights = nnx.split(decoder)[1]
        assert jax.tree.map(shape_of, weights) == self._shapes[0]
        self.weights = weights

    def made_from(self) -> str:
        """All that the stage's programs depend on beside their keys and arguments."""
        return repr((self._model, program_signature(self._shapes), describe(self.layout, self.weights)))


class EarlierStages:
    """The stages before the last one; none of a model without a pipeline."""

    def __init__(self, stages: Sequence[EarlierStage], last: Layout) -> None:
        self.stages = list(stages)
        self._last = last

    def enter(
        self, programs: Programs, kind: str, size: int, packed: np.ndarray
    ) -> dict[str, Float[Array, "T E"]]:
        """Runs the stages in turn; what the last stage is handed, nothing where there is no pipeline."""
        handed: dict[str, Float[Array, "T E"]] = {}
        following = [*(stage.layout for stage in self.stages), self._last][1:]
        for stage, layout in zip(self.stages, following, strict=True):
            residual = stage.run(programs, kind, size, {"packed": packed, **handed})
            handed = {"entering": jax.device_put(residual, layout.replicated)}
        return handed

    def copy_pages(self, programs: Programs, pages: np.ndarray) -> None:
        """Copies KV pages in every stage."""
        for stage in self.stages:
            stage.copy_pages(programs, pages)

    def arrays(self) -> list[jax.Array]:
        """Weights and KV pages."""
        return jax.tree.leaves([(stage.weights, stage.cache) for stage in self.stages])


def enter_prefill(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, " L"],
    sizes: PackedPrefill,
    entering: Float[Array, "T E"] | None = None,
) -> tuple[KVCache, Float[Array, "T E"]]:
    """A stage's part of a prefill. Donates cache."""
    rows, chunks = unpack_prefill(packed, sizes)
    residual, cache = Forward(nnx.merge(graph, weights), backend).chunks(rows, chunks, cache, entering)
    return cache, residual


def enter_decode(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, "R columns"],
    entering: Float[Array, "R E"] | None = None,
) -> tuple[KVCache, Float[Array, "R E"]]:
    """A stage's part of one decode step. Donates cache."""
    rows, forward = unpack_rows(packed), Forward(nnx.merge(graph, weights), backend)
    positions = jnp.where(rows.limit > 0, rows.position, -1)
    residual, cache = forward.singles(rows.page_table, rows.token, positions, cache, entering)
    return cache, residual


def entering_shape(layout: Layout, num_tokens: int, width: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The argument by which a stage is handed the residual stream; none where it is the first."""
    if layout.is_first:
        return {}
    shape = (num_tokens, width)
    return {"entering": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=layout.replicated)}


def shape_of(array: jax.Array) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array, and how it lies on a mesh."""
    sharding = array.sharding if isinstance(array.sharding, NamedSharding) else None
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def describe(layout: Layout, weights: Any) -> str:
    """The devices, and how the weights lie on them."""
    if layout.mesh is None:
        return "the default device"
    specs = [str(each.sharding.spec) for each in jax.tree.leaves(weights)]
    return f"{[device.id for device in layout.mesh.devices.flat]} {specs}"
