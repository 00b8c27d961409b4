"""Operations counted from the shapes of models, and the figures of phases."""

import pytest

from headrace.engines.llm.config import ExpertsConfig, LayerConfig, ModelConfig
from headrace.engines.llm.costs import layer_weights, token_flops
from headrace.engines.roofline import Phase
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.costs import encoder_flops
from headrace.engines.whisper.costs import token_flops as whisper_token_flops


def make_model(**changes) -> ModelConfig:
    """SmolLM2-135M's shape."""
    settings = {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "layers": (LayerConfig(rope=None),) * 30,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "norm_eps": 1e-5,
        "max_position": 2048,
    }
    return ModelConfig(**(settings | changes))


def test_a_token_costs_two_operations_a_weight_and_its_attention():
    config = make_model()
    weights = 30 * (576 * 576 * 2 + 2 * 576 * 192 + 3 * 576 * 1536)
    assert 30 * layer_weights(config, config.layers[0]) == weights
    assert token_flops(config, 0, with_head=False) == 2 * weights
    assert token_flops(config, 0, with_head=True) == 2 * (weights + 576 * 49152)
    assert token_flops(config, 100, with_head=False) - 2 * weights == 30 * 4 * 9 * 64 * 100


def test_windows_and_experts_bound_what_a_token_costs():
    windowed = make_model(layers=(LayerConfig(rope=None, window=50),))
    assert token_flops(windowed, 100, with_head=False) == token_flops(windowed, 50, with_head=False)
    experts = ExpertsConfig(num_experts=8, num_active=2, intermediate_size=64, normalizes_weights=True)
    layer = LayerConfig(rope=None, experts=experts)
    plain = make_model(intermediate_size=0)
    assert layer_weights(plain, layer) - layer_weights(plain, plain.layers[0]) == 2 * 3 * 576 * 64 + 576 * 8


def test_whisper_tiny_takes_some_37_gflop_a_window():
    dims = ModelDims(
        num_mels=80,
        num_vocab=51864,
        width=384,
        encoder_layers=4,
        encoder_heads=6,
        decoder_layers=4,
        decoder_heads=6,
        num_frames=1500,
        max_tokens=448,
    )
    assert encoder_flops(dims) == pytest.approx(37e9 + 4 * 1500 * 4 * 384**2, rel=0.02)
    assert whisper_token_flops(dims, 0) == pytest.approx(4 * (28 * 384**2 + 4 * 1500 * 384) + 2 * 384 * 51864)


def test_a_phase_at_the_peak_uses_all_of_it():
    phase = Phase("decode", "tokens", 10, flops=2e9, num_bytes=0.0, seconds=2.0)
    assert phase.utilisation(peak=1e9) == 1.0
