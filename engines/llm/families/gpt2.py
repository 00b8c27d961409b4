"""GPT-2: learned positions, layer norms, biases everywhere, an MLP without a gate."""

from headrace.engines.llm.config import LayerConfig, ModelConfig
from headrace.engines.llm.families.fields import Fields


def read_gpt2(fields: Fields) -> ModelConfig:
    """GPT-2, from 124M to XL."""
    hidden_size, num_heads = fields.get("n_embd", 768), fields.get("n_head", 12)
    head_dim = hidden_size // num_heads
    fields.get("reorder_and_upcast_attn")  # scores are float32 here anyway
    return ModelConfig(
        vocab_size=fields.need("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.get("n_inner", 4 * hidden_size),
        layers=(LayerConfig(rope=None),) * fields.get("n_layer", 12),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        norm_eps=fields.get("layer_norm_epsilon", 1e-5),
        max_position=fields.get("n_positions", 1024),
        norm="layer",
        activation=fields.activation("activation_function", "gelu_new"),
        is_gated=False,
        has_learned_positions=True,
        attention_scale=head_dim**-0.5 if fields.get("scale_attn_weights", True) else 1.0,
        tie_embeddings=fields.get("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )
