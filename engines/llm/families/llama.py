"""Decoders of the Llama kind: norms before attention and gated MLP, rotary positions."""

from typing import Any

from headrace.engines.errors import ModelError
from headrace.engines.llm.config import LayerConfig, ModelConfig
from headrace.engines.llm.families.fields import Fields
from headrace.engines.llm.families.rope_fields import read_rope


def read_llama(fields: Fields) -> ModelConfig:
    """Llama 1 to 3 and SmolLM2."""
    if fields.get("rope_interleaved", False):
        raise ModelError("rope_interleaved is not supported")
    has_bias = fields.get("attention_bias", False)
    layers = same_layers(fields, read_rope(fields, read_head_dim(fields)))
    mlp_bias = fields.get("mlp_bias", False)
    return gated_decoder(fields, layers, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=mlp_bias)


def read_mistral(fields: Fields) -> ModelConfig:
    """Mistral: every layer may have a window."""
    window = fields.given("sliding_window", 4096)
    return gated_decoder(fields, same_layers(fields, read_rope(fields, read_head_dim(fields)), window))


def read_qwen2(fields: Fields) -> ModelConfig:
    """Qwen2 and 2.5: biases on queries, keys and values; the upper layers may have windows."""
    has_bias = fields.get("attention_bias", True)  # GGUF files say so; Hugging Face has no such field
    return gated_decoder(fields, _qwen_layers(fields), qkv_bias=has_bias)


def read_qwen3(fields: Fields) -> ModelConfig:
    """Qwen3: norms on queries and keys."""
    has_bias = fields.get("attention_bias", False)
    return gated_decoder(
        fields, _qwen_layers(fields), qkv_bias=has_bias, output_bias=has_bias, has_qk_norm=True
    )


def read_phi3(fields: Fields) -> ModelConfig:
    """Phi-3 and Phi-4-mini: some heads are rotated in part."""
    rope = read_rope(fields, read_head_dim(fields), kind_names=_PHI3_ROPES)
    return gated_decoder(fields, same_layers(fields, rope, fields.get("sliding_window")))


_PHI3_ROPES = {"su": "longrope", "yarn": "longrope"}
"""Names that longrope had in the first Phi-3 checkpoints."""


def read_smollm3(fields: Fields) -> ModelConfig:
    """SmolLM3: one layer of four has no position embedding."""
    rope = read_rope(fields, read_head_dim(fields), theta=2_000_000.0)
    num_layers, interval = fields.need("num_hidden_layers"), fields.get("no_rope_layer_interval", 4)
    pattern = [int((index + 1) % interval != 0) for index in range(num_layers)]
    has_rope = [bool(value) for value in fields.get("no_rope_layers", pattern)]
    window = fields.get("sliding_window") if fields.get("use_sliding_window", False) else None
    default = ["full_attention" if each or window is None else "sliding_attention" for each in has_rope]
    windows = read_windows(fields, default, window)
    layers = tuple(
        LayerConfig(rope=rope if each else None, window=own)
        for each, own in zip(has_rope, windows, strict=True)
    )
    has_bias = fields.get("attention_bias", False)
    return gated_decoder(
        fields,
        layers,
        tie_default=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=fields.get("mlp_bias", False),
    )


def _qwen_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    num_layers = fields.need("num_hidden_layers")
    first, window = fields.get("max_window_layers", 28), fields.get("sliding_window", 4096)
    is_used = fields.get("use_sliding_window", False)
    default = [
        "sliding_attention" if is_used and index >= first else "full_attention" for index in range(num_layers)
    ]
    windows = read_windows(fields, default, window if is_used else None)
    rope = read_rope(fields, read_head_dim(fields))
    return tuple(LayerConfig(rope=rope, window=own) for own in windows)


def read_head_dim(fields: Fields) -> int:
    """Width of one head; the query heads share the hidden size where the configuration names none."""
    return fields.get("head_dim", fields.need("hidden_size") // fields.need("num_attention_heads"))


def same_layers(fields: Fields, rope: Any, window: int | None = None) -> tuple[LayerConfig, ...]:
    """Layers that do not differ."""
    return (LayerConfig(rope=rope, window=window),) * fields.need("num_hidden_layers")


def read_windows(fields: Fields, default: list[str], window: int | None) -> list[int | None]:
    """Each layer's window, by the field layer_types or, where there is none, by `default`.

    Raises:
      ModelError: a kind of layer, or the number of layers, is not as it should be.
    """
    kinds = fields.get("layer_types", default)
    if len(kinds) != len(default):
        raise ModelError(f"layer_types has {len(kinds)} entries for {len(default)} layers")
    unknown = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
    if unknown:
        raise ModelError(f"layer_types names {unknown[0]!r}, which headrace does not understand")
    if window is None and "sliding_attention" in kinds:
        raise ModelError("layer_types names sliding_attention, but no window is set")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def gated_decoder(
    fields: Fields, layers: tuple[LayerConfig, ...], *, tie_default: bool = False, **features: Any
) -> ModelConfig:
    """The fields that all decoders of this kind have, and the features that the family adds."""
    num_heads = fields.need("num_attention_heads")
    shared: dict[str, Any] = {
        "vocab_size": fields.need("vocab_size"),
        "hidden_size": fields.need("hidden_size"),
        "intermediate_size": fields.need("intermediate_size"),
        "layers": layers,
        "num_heads": num_heads,
        "num_kv_heads": fields.get("num_key_value_heads", num_heads),
        "head_dim": read_head_dim(fields),
        "norm_eps": fields.get("rms_norm_eps", 1e-6),
        "max_position": _max_position(fields, layers),
        "tie_embeddings": fields.get("tie_word_embeddings", tie_default),
    }
    if "activation" not in features:
        shared["activation"] = fields.activation("hidden_act", "silu")
    return ModelConfig(**shared, **features)


def _max_position(fields: Fields, layers: tuple[LayerConfig, ...]) -> int:
    """Longest context; yarn is switched on in a configuration that else stays that of the short one."""
    named = fields.get("max_position_embeddings", 2048)
    yarns = [layer.rope for layer in layers if layer.rope is not None and layer.rope.kind == "yarn"]
    return max([named, *(int(rope.original_max_position * rope.factor) for rope in yarns)])
