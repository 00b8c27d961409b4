"""The weights that a decoder is going to have, before there are any."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder, Ends
from headrace.engines.llm.partition import Layout

Path = tuple[str, ...]
"""Names from the decoder down to a weight, with the layer's number in the whole model."""


class Outline(NamedTuple):
    """A module without its weights, and those in order: their paths, shapes and dtypes."""

    graph: nnx.GraphDef
    treedef: Any
    paths: list[Path]
    leaves: list[jax.ShapeDtypeStruct]

    def fill(self, weights: Sequence[jax.Array]) -> Any:
        """The module with these weights."""
        return nnx.merge(self.graph, jax.tree_util.tree_unflatten(self.treedef, weights))


def outline(model: ModelConfig, precision: Precision, layout: Layout) -> Outline:
    """The outline of a decoder, or of the layers of one pipeline stage; `model` is the whole one."""
    precision = precision._replace(num_shards=layout.num_shards)
    part, ends = layout.part_of(model), Ends(layout.is_first, layout.is_last)
    return trace(lambda: Decoder(part, precision, ends), layout)


def trace(make: Callable[[], nnx.Module], layout: Layout) -> Outline:
    """The outline of a module that is made so."""
    graph, state = nnx.split(nnx.eval_shape(make))
    found, treedef = jax.tree_util.tree_flatten_with_path(state)
    paths = [layout.path_of(tuple(_key_name(key) for key in keys)[:-1]) for keys, _ in found]
    return Outline(graph, treedef, paths, [leaf for _, leaf in found])


def _key_name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))
