"""Weights in 8 bits: what they take, what they cost in exactness, and that the engine runs on them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from headrace.audio import load_audio
from headrace.engines.checkpoints import Checkpoint
from headrace.engines.whisper import WhisperConfig, WhisperEngine
from headrace.engines.whisper.layers import Linear
from headrace.engines.whisper.loading import load
from headrace.engines.whisper.weights import Form


def test_a_product_of_8_bits_is_near_the_whole_one():
    rng = np.random.default_rng(0)
    weight = jnp.asarray(rng.normal(size=(24, 64)) * np.logspace(-3, 0, 24)[:, None], jnp.float32)
    bias, x = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((24,), (3, 64)))
    float32 = jnp.dtype(jnp.float32)
    whole = Linear((weight, bias), Form(float32, "plain"))(x) - bias[None]
    product = Linear((weight, bias), Form(float32, "int8"))
    assert product.weight[...].dtype == jnp.int8
    sizes = jnp.linalg.norm(weight, axis=1)[None]  # of each output, however small its weights
    assert float(jnp.max(jnp.abs(product(x) - bias[None] - whole) / sizes)) < 0.04


def test_the_weights_take_a_quarter_of_float32(random_whisper):
    checkpoint = random_whisper(num_mels=80)
    whole, small = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(load(checkpoint, config).model)))
        for config in (
            WhisperConfig(dtype="float32"),
            WhisperConfig(dtype="float32", quantization="int8"),
        )
    )
    # Head and lookup are one matrix of 51865 x 16 each, and nearly all of this model: 4 + 4 against 4 + 1.
    assert small / whole == pytest.approx(5 / 8, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_speech_is_transcribed(whisper_tiny_checkpoint: Checkpoint, shared_data: Path, dtype: str):
    sound = load_audio(shared_data / "speech" / "whisper__jfk.flac").waveform
    config = WhisperConfig(batch_size=2, dtype=dtype, quantization="int8", beam_size=2)
    with WhisperEngine(whisper_tiny_checkpoint, config) as engine:
        result = engine.transcribe(sound, return_timestamps="word")
    assert "ask what you can do for your country" in result["text"]
