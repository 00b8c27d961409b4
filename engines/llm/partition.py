"""How a decoder lies on the devices of a replica: which layers on which mesh, and which axes are split."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from headrace.engines.errors import ConfigError
from headrace.engines.llm.config import ModelConfig
from headrace.engines.mesh import TENSOR, Meshes, ParallelConfig
from headrace.engines.partition import PartitionRules, check_spec, find_spec, split_array
from headrace.engines.program_store import Device

_SPLIT_OUTPUTS = re.compile(r"(attention\.qkv|mlp\.gate_up|mlp\.up)\.(kernel|kernel_scale|bias)$")
_SPLIT_INPUTS = re.compile(r"(attention\.output|mlp\.down)\.kernel$")
_TABLES = re.compile(r"^(embedding|head)$")

KV_SPEC = PartitionSpec(None, TENSOR)
"""KV pages: each device holds its own kv heads of all of them."""


class Columns(NamedTuple):
    """The outputs of a product in the order in which the shards hold them."""

    order: Int[np.ndarray, " outputs"]
    count: int
    """Outputs in the checkpoint: fewer where kv heads are repeated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where a decoder, or the layers of one pipeline stage, lie."""

    mesh: Mesh | None = None
    """The devices; JAX's default device where None."""
    rules: PartitionRules | None = None
    """Partition rules in place of those of `split_of`; what none of them names is replicated."""
    first_layer: int = 0
    """The first layer of the stage."""
    num_layers: int | None = None
    """Layers of the stage; all of them where None."""
    is_first: bool = True
    """Whether the embedding stands before the layers."""
    is_last: bool = True
    """Whether the norm and the output head come after them."""

    @property
    def is_whole(self) -> bool:
        """Whether these are all layers."""
        return self.is_first and self.is_last

    @property
    def num_shards(self) -> int:
        """Devices that each layer is split over."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def devices(self) -> list[Device] | None:
        """The devices in the mesh's order; None for the default device."""
        return None if self.mesh is None else list(self.mesh.devices.flat)

    @property
    def replicated(self) -> NamedSharding | None:
        """The sharding of arrays of which every device has all; None on the default device."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    @property
    def pages(self) -> NamedSharding | None:
        """The sharding of KV pages; None on the default device."""
        return None if self.mesh is None else NamedSharding(self.mesh, KV_SPEC)

    def part_of(self, model: ModelConfig) -> ModelConfig:
        """The model with the layers of the stage alone; kv heads that are fewer than shards are repeated."""
        end = None if self.num_layers is None else self.first_layer + self.num_layers
        kv_heads = max(model.num_kv_heads, self.num_shards)
        return replace(model, layers=model.layers[self.first_layer : end], num_kv_heads=kv_heads)

    def path_of(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The path of a weight with the layer's number in the whole model."""
        if path[0] != "layers":
            return path
        return (path[0], str(int(path[1]) + self.first_layer), *path[2:])

    def place(self, path: tuple[str, ...], values: np.ndarray) -> jax.Array:
        """A weight on its devices; `path` is that in the whole model."""
        if self.mesh is None:
            return jax.device_put(values)
        name = ".".join(path)
        if self.rules is None:
            spec = split_of(name, values.shape, self.num_shards)
        else:
            spec = find_spec(self.rules, name)
            check_spec(spec, name, values.shape, self.mesh)
        return split_array(values, self.mesh, spec)

    def columns(self, path: tuple[str, ...], model: ModelConfig) -> Columns | None:
        """The order of a weight's outputs; None where it is that of the checkpoint.

        Several products lie side by side in one: of each of them a shard holds its own part.
        """
        if self.num_shards == 1 or path[-1] not in ("kernel", "bias") or path[0] != "layers":
            return None
        if path[-3:-1] == ("attention", "qkv"):
            return _qkv_columns(model, self.num_shards)
        if path[-3:-1] == ("mlp", "gate_up"):
            experts = model.layers[int(path[1])].experts
            inner = model.intermediate_size if experts is None else experts.intermediate_size
            order = np.arange(2 * inner).reshape(2, self.num_shards, -1).swapaxes(0, 1)
            return Columns(order.reshape(-1), 2 * inner)
        return None


ON_DEFAULT_DEVICE = Layout()


def stage_layouts(
    model: ModelConfig, config: ParallelConfig, meshes: Meshes | None, rules: PartitionRules | None = None
) -> list[Layout]:
    """The layouts of a replica's pipeline stages.

    Raises:
      ConfigError: the model cannot be split so.
    """
    if meshes is None:
        return [ON_DEFAULT_DEVICE]
    check_split(model, config.tensor_parallel_size)
    counts = config.stage_layers(model.num_layers)
    return [
        Layout(
            mesh=mesh,
            rules=rules,
            first_layer=sum(counts[:stage]),
            num_layers=count,
            is_first=stage == 0,
            is_last=stage == len(counts) - 1,
        )
        for stage, (mesh, count) in enumerate(zip(meshes, counts, strict=True))
    ]


def check_split(model: ModelConfig, num_shards: int) -> None:
    """Raises ConfigError where heads or MLPs do not divide into so many shards."""
    inner = {layer.experts.intermediate_size for layer in model.layers if layer.experts is not None}
    if any(layer.experts is None for layer in model.layers):
        inner.add(model.intermediate_size)
    numbers = {"query heads": [model.num_heads], "units of an MLP": sorted(inner)}
    for name, counts in numbers.items():
        uneven = [count for count in counts if count % num_shards]
        if uneven:
            raise ConfigError(
                f"{uneven[0]} {name} do not divide into {num_shards} shards: "
                "give a tensor_parallel_size that divides them"
            )
    kv_heads = model.num_kv_heads
    if kv_heads % num_shards and num_shards % kv_heads:
        raise ConfigError(
            f"{kv_heads} kv heads do not divide into {num_shards} shards, nor the shards into them: "
            "give another tensor_parallel_size"
        )


def split_of(path: str, shape: Sequence[int], num_shards: int) -> PartitionSpec:
    """How a decoder's weight is split where no rules are given; what is not named here is replicated.

    The tables are split by token or, where that is not even, by width.
    """
    whole = (None,) * len(shape)
    if _SPLIT_OUTPUTS.search(path):
        return PartitionSpec(*whole[:-1], TENSOR)
    if _SPLIT_INPUTS.search(path):
        return PartitionSpec(*whole[:-2], TENSOR, None)
    if _TABLES.search(path):
        axis = next((axis for axis, size in enumerate(shape) if size % num_shards == 0), None)
        return PartitionSpec(*(TENSOR if number == axis else None for number in range(len(shape))))
    return PartitionSpec()


def largest_part(model: ModelConfig, config: ParallelConfig) -> ModelConfig:
    """What the device with the most layers holds of a model's layers, as a model of its own."""
    shards = config.tensor_parallel_size
    most = max(config.stage_layers(model.num_layers))
    return replace(
        model,
        layers=model.layers[:most],
        num_heads=model.num_heads // shards,
        num_kv_heads=max(model.num_kv_heads // shards, 1),
    )


def _qkv_columns(model: ModelConfig, num_shards: int) -> Columns:
    """Of each shard its query heads, its key heads and its value heads.

    e.g. 4 query heads and 2 kv heads over 2 shards: q0 q1 k0 v0, then q2 q3 k1 v1; over 4: q0 k0 v0,
    q1 k0 v0, q2 k1 v1, q3 k1 v1
    """
    num_heads, num_kv_heads = model.num_heads, model.num_kv_heads
    queries = np.arange(num_heads).reshape(num_shards, -1)
    repeats = max(num_shards // num_kv_heads, 1)
    keys = num_heads + np.repeat(np.arange(num_kv_heads), repeats).reshape(num_shards, -1)
    heads = np.concatenate([queries, keys, keys + num_kv_heads], axis=1).reshape(-1)
    columns = heads[:, None] * model.head_dim + np.arange(model.head_dim)[None, :]
    return Columns(columns.reshape(-1), (num_heads + 2 * num_kv_heads) * model.head_dim)
