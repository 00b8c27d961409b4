"""Mixtures of experts: Mixtral and Qwen3-MoE."""

from dataclasses import replace

from headrace.engines.llm.config import ExpertsConfig, LayerConfig, ModelConfig
from headrace.engines.llm.families.fields import Fields
from headrace.engines.llm.families.llama import gated_decoder, read_head_dim, same_layers
from headrace.engines.llm.families.rope_fields import read_rope


def read_mixtral(fields: Fields) -> ModelConfig:
    """Mixtral: experts in every layer."""
    experts = ExpertsConfig(
        num_experts=fields.get("num_local_experts", 8),
        num_active=fields.get("num_experts_per_tok", 2),
        intermediate_size=fields.need("intermediate_size"),
        normalizes_weights=True,
    )
    rope = read_rope(fields, read_head_dim(fields), theta=1_000_000.0)
    layers = same_layers(fields, rope, fields.get("sliding_window"))
    return gated_decoder(fields, tuple(replace(layer, experts=experts) for layer in layers))


def read_qwen3_moe(fields: Fields) -> ModelConfig:
    """Qwen3-MoE: experts in every `decoder_sparse_step`-th layer that is not among mlp_only_layers."""
    experts = ExpertsConfig(
        num_experts=fields.get("num_experts", fields.get("num_local_experts", 128)),
        num_active=fields.get("num_experts_per_tok", 8),
        intermediate_size=fields.get("moe_intermediate_size", 768),
        normalizes_weights=fields.get("norm_topk_prob", False),
    )
    dense, step = fields.get("mlp_only_layers", []), fields.get("decoder_sparse_step", 1)
    fields.get("max_window_layers")  # windows are in all layers or in none
    window = fields.get("sliding_window", 4096) if fields.get("use_sliding_window", False) else None
    layers = same_layers(fields, read_rope(fields, read_head_dim(fields)), window)
    has_bias = fields.get("attention_bias", False)
    return gated_decoder(
        fields,
        tuple(_with_experts(layer, experts, index, dense, step) for index, layer in enumerate(layers)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        has_qk_norm=True,
    )


def _with_experts(
    layer: LayerConfig, experts: ExpertsConfig, index: int, dense: list[int], step: int
) -> LayerConfig:
    is_dense = index in dense or (index + 1) % step != 0
    return layer if is_dense else replace(layer, experts=experts)
