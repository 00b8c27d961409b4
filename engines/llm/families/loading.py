"""A checkpoint's tensors into the decoder's weights."""

import re
from collections.abc import Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ModelError
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.families.outline import Outline, Path, outline
from headrace.engines.llm.families.registry import find_family
from headrace.engines.llm.families.weight_names import WeightNames
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.partition import ON_DEFAULT_DEVICE, Columns, Layout
from headrace.engines.native.linear import (
    interleave_gate,
    pack_weight,
    packed_byte_shape,
    packed_shape,
    quantize_packed,
    round_packed,
)
from headrace.engines.quantization import quantize_int8

NUM_READERS = 4
"""Threads that make weights ready, which NumPy does without the interpreter's lock."""

_HEAD = "lm_head.weight"
_PACKED = ("packed", "packed_pairs")
_CONSTANTS = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)")


_TO_WHOLE: dict[np.dtype, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    np.dtype(np.int8): quantize_int8,
    np.dtype(np.uint8): quantize_packed,
    np.dtype(np.int16): round_packed,
}
"""What makes whole numbers of a weight, and their scales, by the dtype that it is to have."""


class Source(NamedTuple):
    """The tensors that make up one weight: those of a group are laid together, the groups are stacked."""

    groups: list[list[str]]
    is_stacked: bool


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    precision: Precision,
    layout: Layout = ON_DEFAULT_DEVICE,
) -> Decoder:
    """The decoder with the checkpoint's weights; those of products in whole numbers, or packed, if so wanted.

    A weight is read whole into the host's memory, and each device is given its own part of it. Of a pipeline
    stage the weights are those of its layers.

    Raises:
      ModelError: a weight is missing, has another shape than the configuration says, or is no part of the
        model.
    """
    names = find_family(checkpoint.config).names
    available = checkpoint.tensor_names()
    prefix = _find_prefix(names, available)
    plan = outline(config, precision, layout)
    sources = [find_source(path, names, prefix, config) for path in plan.paths]
    whole = plan.paths if layout.is_whole else outline(config, precision, ON_DEFAULT_DEVICE).paths
    used = {
        name for path in whole for group in find_source(path, names, prefix, config).groups for name in group
    }
    _check_names(checkpoint, used, available, config)
    columns = {path: layout.columns(path, config) for path in plan.paths}
    loaded = read_weights(
        checkpoint, plan, dict(zip(plan.paths, sources, strict=True)), names, layout, columns
    )
    return plan.fill([loaded[path] for path in plan.paths])


def read_weights(
    checkpoint: Checkpoint,
    plan: Outline,
    sources: Mapping[Path, Source],
    names: WeightNames,
    layout: Layout = ON_DEFAULT_DEVICE,
    columns: Mapping[Path, Columns | None] | None = None,
) -> dict[Path, jax.Array]:
    """The weights of an outline that have a source here, on their devices, and the scales of whole ones.

    Raises:
      ModelError: a weight has another shape.
    """
    leaves = dict(zip(plan.paths, plan.leaves, strict=True))
    wanted = [path for path in sources if path[-1] != "kernel_scale"]  # made with its kernel

    def read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
        return _load(checkpoint, path, sources[path], leaves[path], (columns or {}).get(path), names)

    loaded: dict[Path, jax.Array] = {}
    with ThreadPoolExecutor(NUM_READERS, "headrace-weights") as pool:
        for path, (values, scale) in zip(wanted, pool.map(read, wanted), strict=True):
            loaded[path] = layout.place(path, values)
            if scale is not None:
                scale_path = (*path[:-1], "kernel_scale")
                loaded[scale_path] = layout.place(scale_path, scale)
    checkpoint.unload()
    return loaded


def find_source(path: tuple[str, ...], names: WeightNames, prefix: str, config: ModelConfig) -> Source:
    """The tensors of a weight.

    e.g. ("layers", "3", "mlp", "down", "kernel") -> model.layers.3.mlp.down_proj.weight
    """
    top = {"embedding": names.embedding, "positions": names.positions, "norm": names.norm}
    if path == ("head",):
        return Source([[_HEAD]], is_stacked=False)
    suffix = "bias" if path[-1] == "bias" else "weight"
    if path[0] != "layers":
        return Source([[f"{prefix}{top[path[0]]}.{suffix}"]], is_stacked=False)
    index, part = int(path[1]), ".".join(path[2:-1])
    experts = config.layers[index].experts
    parts = names.parts if experts is None else {**names.parts, **names.expert_parts}
    stems = [f"{prefix}{names.layers}.{index}.{stem}.{suffix}" for stem in parts[part]]
    if experts is None or "{expert}" not in stems[0]:
        return Source([stems], is_stacked=False)
    numbers = range(experts.num_experts)
    return Source([[stem.format(expert=number) for stem in stems] for number in numbers], is_stacked=True)


def _load(
    checkpoint: Checkpoint,
    path: tuple[str, ...],
    source: Source,
    leaf: jax.ShapeDtypeStruct,
    columns: Columns | None,
    names: WeightNames,
) -> tuple[np.ndarray, np.ndarray | None]:
    """A weight and, where it is whole numbers, its scales."""
    is_packed, is_gate = path[-1] in _PACKED, path[-1] == "packed_pairs"
    shape_of = packed_byte_shape if leaf.dtype == np.uint8 else packed_shape
    to_whole = _TO_WHOLE.get(leaf.dtype)
    is_transposed = (path[-1] == "kernel" and not names.is_input_major) or (
        is_packed and names.is_input_major
    )
    arrays, scales = [], []
    for group in source.groups:
        parts = [checkpoint.tensor(name) for name in group]
        merged = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=0)
        merged = merged.T if is_transposed else merged
        wanted = leaf.shape[1:] if source.is_stacked else leaf.shape
        wanted = wanted if columns is None else (*wanted[:-1], columns.count)
        shape = shape_of(*merged.shape[::-1]) if is_packed else merged.shape
        if shape != wanted:
            raise ModelError(
                f"weight {' + '.join(group)} in {checkpoint.model.spec} has shape {merged.shape}, "
                f"the configuration says {wanted}"
            )
        merged = merged if columns is None else merged[..., columns.order]
        merged = interleave_gate(merged) if is_gate else merged
        if to_whole is not None:
            merged, scale = to_whole(merged.astype(np.float32))
            scales.append(scale)
        elif is_packed:
            merged = pack_weight(merged)
        arrays.append(merged if is_packed else _to_dtype(merged, leaf.dtype))
    join = np.stack if source.is_stacked else (lambda parts: parts[0])
    loaded = join(arrays)
    if path[-1] == "scale":
        loaded = loaded + np.asarray(names.norm_offset, loaded.dtype)
    return loaded, join(scales) if scales else None


def is_constant(name: str) -> bool:
    """Whether a tensor is one that some checkpoints store beside their weights, and nobody needs."""
    return _CONSTANTS.fullmatch(name) is not None


def _to_dtype(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype == np.uint16:  # bfloat16, kept as its bits
        return np.ascontiguousarray(values).astype(jnp.bfloat16).view(np.uint16)
    return np.ascontiguousarray(values).astype(dtype)


def _find_prefix(names: WeightNames, available: Set[str]) -> str:
    known = [prefix for prefix in names.prefixes if f"{prefix}{names.embedding}.weight" in available]
    return known[0] if known else names.prefixes[0]


def _check_names(checkpoint: Checkpoint, used: set[str], available: Set[str], config: ModelConfig) -> None:
    missing = sorted(used - available)
    if missing:
        raise ModelError(f"weight {missing[0]} is missing in {checkpoint.model.spec}")
    tied = {_HEAD} if config.tie_embeddings else set()
    surplus = sorted(name for name in available - used - tied if not is_constant(name))
    if surplus:
        raise ModelError(
            f"{checkpoint.model.spec} has a weight {surplus[0]}, which is no part of the model that its "
            "configuration describes"
        )
