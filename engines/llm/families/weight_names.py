"""Where the decoder's weights lie in a checkpoint, family by family."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_LLAMA_PARTS = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.query_norm": ("self_attn.q_norm",),
    "attention.key_norm": ("self_attn.k_norm",),
    "attention.output": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}
_GEMMA_PARTS = _LLAMA_PARTS | {
    "attention_post_norm": ("post_attention_layernorm",),
    "mlp_norm": ("pre_feedforward_layernorm",),
    "mlp_post_norm": ("post_feedforward_layernorm",),
}
_PHI3_PARTS = _LLAMA_PARTS | {"attention.qkv": ("self_attn.qkv_proj",), "mlp.gate_up": ("mlp.gate_up_proj",)}
_MIXTRAL_EXPERTS = {
    "mlp.router": ("block_sparse_moe.gate",),
    "mlp.gate_up": ("block_sparse_moe.experts.{expert}.w1", "block_sparse_moe.experts.{expert}.w3"),
    "mlp.down": ("block_sparse_moe.experts.{expert}.w2",),
}
_QWEN3_MOE_EXPERTS = {
    "mlp.router": ("mlp.gate",),
    "mlp.gate_up": ("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj"),
    "mlp.down": ("mlp.experts.{expert}.down_proj",),
}
_GPT2_PARTS = {
    "attention_norm": ("ln_1",),
    "attention.qkv": ("attn.c_attn",),
    "attention.output": ("attn.c_proj",),
    "mlp_norm": ("ln_2",),
    "mlp.up": ("mlp.c_fc",),
    "mlp.down": ("mlp.c_proj",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightNames:
    """The names of a family's tensors."""

    embedding: str = "embed_tokens"
    """Token embedding."""
    positions: str = ""
    """Embedding of the positions, where the family has one."""
    norm: str = "norm"
    """Norm after the last layer."""
    layers: str = "layers"
    """The list of layers."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LLAMA_PARTS)
    """Modules of a layer; where there are several, their outputs are laid side by side."""
    expert_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other names in a layer with experts, whose number takes the place of {expert}."""
    prefixes: tuple[str, ...] = ("model.",)
    """Begin of every name but the output head's; the first that the checkpoint knows is taken."""
    norm_offset: float = 0.0
    """Added to the scales of the norms."""
    is_input_major: bool = False
    """Kernels are stored [in, out]."""


LLAMA = WeightNames()
GEMMA = WeightNames(parts=_GEMMA_PARTS, norm_offset=1.0)
PHI3 = WeightNames(parts=_PHI3_PARTS)
MIXTRAL = WeightNames(expert_parts=_MIXTRAL_EXPERTS)
QWEN3_MOE = WeightNames(expert_parts=_QWEN3_MOE_EXPERTS)
GPT2 = WeightNames(
    embedding="wte",
    positions="wpe",
    norm="ln_f",
    layers="h",
    parts=_GPT2_PARTS,
    prefixes=("transformer.", ""),
    is_input_major=True,
)
