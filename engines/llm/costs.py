"""Operations and bytes that a text model cannot do without."""

from headrace.engines.llm.config import LayerConfig, ModelConfig


def layer_weights(config: ModelConfig, layer: LayerConfig) -> int:
    """Weights that a token is multiplied with in a layer; of experts, those of the ones that it passes."""
    heads = config.num_heads + 2 * config.num_kv_heads
    attention = config.hidden_size * config.head_dim * (heads + config.num_heads)
    matrices = 3 if config.is_gated else 2
    if layer.experts is None:
        return attention + matrices * config.hidden_size * config.intermediate_size
    experts = layer.experts
    passed = matrices * config.hidden_size * experts.intermediate_size * experts.num_active
    return attention + passed + config.hidden_size * experts.num_experts


def token_flops(config: ModelConfig, context: int | float, *, with_head: bool) -> float:
    """Operations of the products for one token that sees `context` tokens; a multiply-add counts as two.

    `with_head`: whether it is projected onto the vocabulary, as tokens that are sampled from are.
    """
    total = 0.0
    for layer in config.layers:
        seen = context if layer.window is None else min(context, layer.window)
        total += 2 * layer_weights(config, layer) + 4 * config.num_heads * config.head_dim * seen
    return total + (2 * config.hidden_size * config.vocab_size if with_head else 0)


def weights_read(config: ModelConfig) -> int:
    """Weights that a step reads, the output head's too; of experts those that one token passes."""
    return (
        sum(layer_weights(config, layer) for layer in config.layers) + config.hidden_size * config.vocab_size
    )
