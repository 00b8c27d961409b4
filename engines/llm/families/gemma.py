"""Gemma 2 and 3: a second norm after attention and MLP, windows in most layers."""

from typing import Any

from headrace.engines.errors import ModelError
from headrace.engines.llm.config import LayerConfig, ModelConfig
from headrace.engines.llm.families.fields import Fields
from headrace.engines.llm.families.llama import gated_decoder, read_windows
from headrace.engines.llm.families.rope_fields import make_rope, read_rope

_HEAD_DIM = 256


def read_gemma2(fields: Fields) -> ModelConfig:
    """Gemma 2: soft caps; every second layer has a window."""
    windows = _read_windows(fields, pattern=2)
    rope = read_rope(fields, fields.get("head_dim", _HEAD_DIM))
    layers = tuple(LayerConfig(rope=rope, window=window) for window in windows)
    soft_cap = fields.given("attn_logit_softcapping", 50.0)
    return _gemma(fields, layers, final_cap=30.0, attention_soft_cap=soft_cap)


def read_gemma3(fields: Fields) -> ModelConfig:
    """Gemma 3 (text): norms on queries and keys; five of six layers have a window and a rope of their own."""
    if fields.get("attn_logit_softcapping") is not None:
        raise ModelError("attn_logit_softcapping is set, but Gemma 3 has no soft cap on its attention")
    windows = _read_windows(fields, pattern=fields.get("sliding_window_pattern", 6))
    head_dim = fields.get("head_dim", _HEAD_DIM)
    parameters = fields.get("rope_parameters", {})
    wide, local = (parameters.get(kind) or {} for kind in ("full_attention", "sliding_attention"))
    wide = dict(wide) | dict(fields.get("rope_scaling", {}))
    local_theta = fields.get("rope_local_base_freq", 10_000.0)
    wide_rope = make_rope(fields, wide, head_dim, theta=1_000_000.0)
    local_rope = make_rope(fields, {"rope_theta": local_theta} | local, head_dim, theta=local_theta)
    layers = tuple(
        LayerConfig(rope=wide_rope if window is None else local_rope, window=window) for window in windows
    )
    return _gemma(fields, layers, final_cap=None, has_qk_norm=True)


def _read_windows(fields: Fields, *, pattern: int) -> list[int | None]:
    """Windows in all layers but each `pattern`-th."""
    default = [
        "sliding_attention" if (index + 1) % pattern else "full_attention"
        for index in range(fields.need("num_hidden_layers"))
    ]
    return read_windows(fields, default, fields.given("sliding_window", 4096))


def _gemma(
    fields: Fields, layers: tuple[LayerConfig, ...], *, final_cap: float | None, **features: Any
) -> ModelConfig:
    has_bias = fields.get("attention_bias", False)
    return gated_decoder(
        fields,
        layers,
        tie_default=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
        activation=_read_activation(fields),
        has_post_norms=True,
        embedding_scale=fields.need("hidden_size") ** 0.5,
        attention_scale=fields.get("query_pre_attn_scalar", 256) ** -0.5,
        logit_soft_cap=fields.given("final_logit_softcapping", final_cap),
        **features,
    )


def _read_activation(fields: Fields) -> Any:
    # The older hidden_act says "gelu" and is not what the model computes.
    fields.get("hidden_act")
    return fields.activation("hidden_activation", "gelu_pytorch_tanh")
