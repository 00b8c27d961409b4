"""Partition rules: which axis of which array is split over the devices of a mesh."""

import math
import re
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.engines.errors import ConfigError

PartitionRules = Sequence[tuple[str, PartitionSpec]]
"""Pairs of a regular expression, looked for in the path of an array, and how that array is split."""


def find_spec(rules: PartitionRules, path: str) -> PartitionSpec:
    """What the first rule says whose pattern is found in the path; arrays without a rule are replicated.

    e.g. rules ((r"mlp\\.down", P("tensor")),), path "layers.3.mlp.down.kernel" -> P("tensor")
    """
    return next((spec for pattern, spec in rules if re.search(pattern, path)), PartitionSpec())


def check_spec(spec: PartitionSpec, path: str, shape: tuple[int, ...], mesh: Mesh) -> None:
    """Raises ConfigError where an array of this shape cannot be split so."""
    if len(spec) > len(shape):
        raise ConfigError(f"the partition {spec} of {path} names {len(spec)} axes, it has {len(shape)}")
    for size, names in zip(shape, spec, strict=False):
        axes = () if names is None else (names,) if isinstance(names, str) else tuple(names)
        unknown = [name for name in axes if name not in mesh.shape]
        if unknown:
            raise ConfigError(
                f"the partition {spec} of {path} names the mesh axis {unknown[0]!r}, "
                f"wanted one of {', '.join(map(repr, mesh.shape))}"
            )
        parts = math.prod(mesh.shape[name] for name in axes)
        if size % parts:
            raise ConfigError(
                f"the partition {spec} of {path} cuts {size} into {parts} parts, which are not even"
            )


def split_array(values: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """An array on the devices of a mesh, each of which is given its own slice alone."""
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, spec), lambda index: values[index])
