"""EAGLE heads in the layout in which they are published: a Llama of one layer without ends, and `fc`."""

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ConfigError, ModelError
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.eagle_head import EagleHead
from headrace.engines.llm.families.loading import Source, find_source, is_constant, read_weights
from headrace.engines.llm.families.outline import Path, trace
from headrace.engines.llm.families.registry import read_model_config
from headrace.engines.llm.families.weight_names import LLAMA
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.partition import ON_DEFAULT_DEVICE

_OWN_FIELDS = ("bias", "qkv_bias")
"""Fields of config.json about biases, which the tensors show."""
_EMBEDDING, _HEAD, _FUSION = "embed_tokens.weight", "lm_head.weight", "fc.weight"
_EAGLE_3 = ("midlayer.", "d2t", "t2d")


def load_eagle_head(checkpoint: Checkpoint, target: Decoder, precision: Precision) -> EagleHead:
    """The head with its weights. The embedding is the target's array where it is not one of its own.

    Raises:
      ModelError: it is no EAGLE head, one of EAGLE-3, or a weight is missing, of another shape, or unknown.
      ConfigError: it was made for another model than the target.
    """
    names = _plain_names(checkpoint)
    _check_kind(checkpoint, names)
    config = read_eagle_config(checkpoint)
    _check_fit(checkpoint, config, target.config)
    plan = trace(lambda: EagleHead(config, precision, has_bias="fc.bias" in names), ON_DEFAULT_DEVICE)
    sources = {path: _source(path, config) for path in plan.paths}
    assert target.embedding is not None
    table = target.embedding[...]
    shared = set() if _has_other(checkpoint, names, _EMBEDDING, table) else {("embedding",)}
    wanted = {path: source for path, source in sources.items() if path not in shared}
    _check_names(checkpoint, names, wanted, target)
    stored = {path: _in_checkpoint(source, names) for path, source in wanted.items()}
    loaded = read_weights(checkpoint, plan, stored, LLAMA)
    loaded |= dict.fromkeys(shared, table)
    return plan.fill([loaded[path] for path in plan.paths])


def _plain_names(checkpoint: Checkpoint) -> dict[str, str]:
    """The checkpoint's names by those without the beginning that some exports have."""
    return {name.removeprefix("model."): name for name in checkpoint.tensor_names()}


def _check_kind(checkpoint: Checkpoint, names: Mapping[str, str]) -> None:
    spec = checkpoint.model.spec
    if any(name.startswith(_EAGLE_3) for name in names):
        raise ModelError(
            f"{spec} is a head of EAGLE-3, which reads three layers of the model: take one of EAGLE-1 or 2, "
            "which read the last"
        )
    if _FUSION not in names:
        raise ModelError(
            f"{spec} is no EAGLE head: it has no fc.weight; a smaller model goes with method draft_model"
        )


def read_eagle_config(checkpoint: Checkpoint) -> ModelConfig:
    """The shape of a head's layers.

    Raises:
      ModelError: an architecture, or a field that is set, that is not understood; it is named.
    """
    names = _plain_names(checkpoint)
    fields = {name: value for name, value in checkpoint.config.items() if name not in _OWN_FIELDS}
    config = read_model_config(fields)
    first, *rest = config.layers
    return replace(
        config,
        layers=(replace(first, has_attention_norm=False), *rest),
        qkv_bias="layers.0.self_attn.q_proj.bias" in names,
        output_bias="layers.0.self_attn.o_proj.bias" in names,
        mlp_bias="layers.0.mlp.down_proj.bias" in names,
    )


def _check_fit(checkpoint: Checkpoint, own: ModelConfig, target: ModelConfig) -> None:
    spec, remedy = checkpoint.model.spec, "take the head that was trained for this model"
    if own.hidden_size != target.hidden_size:
        raise ConfigError(
            f"the EAGLE head {spec} takes hidden states of {own.hidden_size} numbers, the model gives "
            f"{target.hidden_size}: {remedy}"
        )
    if own.vocab_size != target.vocab_size:
        raise ConfigError(
            f"the EAGLE head {spec} has {own.vocab_size} tokens, the model {target.vocab_size}: {remedy}"
        )


def _source(path: Path, config: ModelConfig) -> Source:
    if path[0] == "fusion":
        suffix = "bias" if path[-1] == "bias" else "weight"
        return Source([[f"fc.{suffix}"]], is_stacked=False)
    return find_source(path, LLAMA, "", config)


def _in_checkpoint(source: Source, names: Mapping[str, str]) -> Source:
    """With the names as the checkpoint has them."""
    return source._replace(groups=[[names[name] for name in group] for group in source.groups])


def _has_other(checkpoint: Checkpoint, names: Mapping[str, str], name: str, table: jax.Array) -> bool:
    """Whether the checkpoint has a table of its own, and not that of the model once more."""
    if name not in names:
        return False
    own = checkpoint.tensor(names[name])
    return own.shape != table.shape or not bool(jnp.array_equal(jnp.asarray(own, table.dtype), table))


def _check_names(
    checkpoint: Checkpoint, names: Mapping[str, str], wanted: Mapping[Path, Source], target: Decoder
) -> None:
    used = {name for source in wanted.values() for group in source.groups for name in group}
    missing = sorted(used - names.keys())
    if missing:
        raise ModelError(f"weight {missing[0]} is missing in the EAGLE head {checkpoint.model.spec}")
    if _has_other(checkpoint, names, _HEAD, target.head_table):
        raise ModelError(
            f"the EAGLE head {checkpoint.model.spec} has another output head (lm_head) than the model: "
            "take one that was trained for this model"
        )
    unused = names.keys() - used - {_EMBEDDING, _HEAD}
    surplus = sorted(name for name in unused if not is_constant(name))
    if surplus:
        raise ModelError(
            f"{checkpoint.model.spec} has a weight {surplus[0]}, which is no part of an EAGLE head"
        )
