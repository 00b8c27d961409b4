"""Architectures of GGUF files: how their metadata and tensor names are those of Hugging Face."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Shaped

from headrace.engines.checkpoints.gguf_file import GgufFile
from headrace.engines.checkpoints.gguf_rope import rope_config
from headrace.engines.errors import ModelError

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_QK_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NOT_WEIGHTS = ("rope_freqs.weight",)  # read into the config
_LAYER_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)")

_CONFIG_KEYS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}
_OTHER_KEYS = (
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "vocab_size",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "expert_count",
    "expert_used_count",
    "tensor_data_layout",
)
_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What differs between the architectures."""

    model_type: str
    """Hugging Face's name."""
    architecture: str
    """Hugging Face's class."""
    permutes_rotary: bool = False
    """Rows of q and k are stored in the interleaved order of llama.cpp's rotary embedding."""
    layer_names: Mapping[str, str] = field(default_factory=lambda: _LAYER_NAMES)
    """Names within a layer, without the layer's prefix and .weight or .bias."""
    norm_offset: float = 0.0
    """What the file has added to the scales of the norms."""
    activation: Mapping[str, str] = field(default_factory=lambda: {"hidden_act": "silu"})
    """The activation's field of a config.json."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Further keys below the architecture's name, and the fields that they are."""


FAMILIES = {
    "llama": Family(model_type="llama", architecture="LlamaForCausalLM", permutes_rotary=True),
    "qwen2": Family(model_type="qwen2", architecture="Qwen2ForCausalLM"),
    "qwen3": Family(
        model_type="qwen3", architecture="Qwen3ForCausalLM", layer_names=_LAYER_NAMES | _QK_NORM_NAMES
    ),
    "gemma3": Family(
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        layer_names=_LAYER_NAMES | _QK_NORM_NAMES | _GEMMA3_NAMES,
        norm_offset=1.0,
        activation={"hidden_activation": "gelu_pytorch_tanh"},
        keys={
            "attention.sliding_window": "sliding_window",
            "rope.freq_base_swa": "rope_local_base_freq",
            "final_logit_softcapping": "final_logit_softcapping",
        },
    ),
}
"""By general.architecture."""


def family_of(file: GgufFile) -> Family:
    """The family of a GGUF file.

    Raises:
      ModelError: its architecture is not one of FAMILIES.
    """
    name = file.metadata.get("general.architecture")
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(
            f"{str(file.path)!r} has the architecture {name!r}: of GGUF files, {known} can be read"
        )
    return FAMILIES[name]


def gguf_config(file: GgufFile, family: Family) -> dict[str, Any]:
    """The config.json of a GGUF file.

    Raises:
      ModelError: a key of the architecture is missing, or is not understood.
    """
    own = _architecture_keys(file, family)
    config = {"model_type": family.model_type, "architectures": [family.architecture], **family.activation}
    config |= {name: _same_in_all_layers(file, key, own[key]) for key, name in _CONFIG_KEYS.items()}
    heads = config["num_attention_heads"]
    kv_heads = own.get("attention.head_count_kv", heads)
    config["num_key_value_heads"] = _same_in_all_layers(file, "attention.head_count_kv", kv_heads)
    config["head_dim"] = own.get("attention.key_length", config["hidden_size"] // heads)
    config |= {name: own[key] for key, name in family.keys.items() if key in own}
    if family.model_type == "gemma3_text":
        config["query_pre_attn_scalar"] = _gemma3_query_scalar(config)
    if own.get("attention.value_length", config["head_dim"]) != config["head_dim"]:
        raise ModelError(
            f"{str(file.path)!r} has keys and values of different widths, which is not understood"
        )
    config["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_down.bias" in file.tensors
    config |= rope_config(file, own, config["head_dim"])
    for name, kind in _IDS.items():
        value = file.metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if value is not None:
            config[name] = value
    return config


def tensor_sources(
    file: GgufFile, config: dict[str, Any], family: Family
) -> dict[str, tuple[str, Callable[[np.ndarray], np.ndarray] | None]]:
    """By Hugging Face name: the stored name, and what puts its rows in Hugging Face's order.

    Raises:
      ModelError: the file holds a tensor that the family does not know.
    """
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found = {}
    for stored in file.tensors:
        if stored in _NOT_WEIGHTS:
            continue
        if stored in _TOP_NAMES:
            is_offset = family.norm_offset and "norm" in stored
            found[_TOP_NAMES[stored]] = (
                stored,
                partial(_take_off, family.norm_offset) if is_offset else None,
            )
            continue
        match = _LAYER_TENSOR.fullmatch(stored)
        if match is None or match["part"] not in family.layer_names:
            raise ModelError(
                f"{str(file.path)!r} has a tensor {stored!r} that is no part of a {family.model_type} model"
            )
        reorder = None
        if family.norm_offset and match["part"].endswith("norm"):
            reorder = partial(_take_off, family.norm_offset)
        if family.permutes_rotary and match["part"] in heads:
            reorder = partial(unpermute_rotary, num_heads=heads[match["part"]])
        part = family.layer_names[match["part"]]
        found[f"model.layers.{match['layer']}.{part}.{match['kind']}"] = (stored, reorder)
    return found


def unpermute_rotary(
    rows: Shaped[np.ndarray, "rows *columns"], *, num_heads: int
) -> Shaped[np.ndarray, "rows *columns"]:
    """Rows of q or k in Hugging Face's order.

    llama.cpp rotates neighbours, Hugging Face the two halves of a head: what the file stores as rows
    0, h/2, 1, h/2 + 1, ... of each head (h rows) is put back to 0, 1, 2, ..., h - 1.
    """
    paired = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


def _take_off(offset: float, scales: Shaped[np.ndarray, " size"]) -> Shaped[np.ndarray, " size"]:
    return scales - np.asarray(offset, scales.dtype)


def _gemma3_query_scalar(config: dict[str, Any]) -> int:
    """The root of it divides the attention scores; the files do not say it, and only the 27B differs."""
    is_27b = config["num_hidden_layers"] == 62
    return config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]


def _architecture_keys(file: GgufFile, family: Family) -> dict[str, Any]:
    """The metadata below the architecture's name, none missing and none unknown."""
    prefix = f"{file.metadata['general.architecture']}."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    unknown = sorted(own.keys() - _CONFIG_KEYS.keys() - family.keys.keys() - set(_OTHER_KEYS))
    if own.get("expert_count", 0):
        unknown.append("expert_count")
    if unknown:
        raise ModelError(f"{str(file.path)!r} has {prefix}{unknown[0]}, which is not understood")
    missing = sorted(_CONFIG_KEYS.keys() - own.keys())
    missing += [name for name in ("token_embd.weight", "output_norm.weight") if name not in file.tensors]
    if missing:
        raise ModelError(f"{str(file.path)!r} has no {missing[0]!r}: not a whole model")
    return own


def _same_in_all_layers(file: GgufFile, key: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(set(value)) == 1:
        return value[0]
    raise ModelError(f"{str(file.path)!r} has a different {key} in each layer, which is not understood")
