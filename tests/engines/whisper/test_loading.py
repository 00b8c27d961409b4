"""Checkpoints that fit, and those that do not."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines.errors import ModelError
from headrace.engines.whisper import WhisperConfig, WhisperEngine
from headrace.engines.whisper.loading import load


@pytest.mark.slow
def test_models_with_128_mels_and_a_short_decoder_run(random_whisper, caplog: pytest.LogCaptureFixture):
    config = WhisperConfig(batch_size=2, decode_burst=4, max_length=12, task="translate", dtype="float32")
    rng = np.random.default_rng(0)
    with caplog.at_level(logging.WARNING), WhisperEngine(random_whisper(), config) as engine:
        sound = (rng.normal(size=16_000) * 0.1).astype(np.float32)
        (result,) = engine.transcribe([{"array": sound, "sampling_rate": 16_000}])
    assert result["error"] is None
    assert "not trained to translate" in caplog.text


def test_the_encoder_takes_its_own_number_of_mels(random_whisper):
    loaded = load(random_whisper(num_mels=80), WhisperConfig(dtype="float32"))
    mel = jax.ShapeDtypeStruct((1, 80, 3000), jnp.float32)
    assert jax.eval_shape(loaded.model.encoder, mel).shape == (1, 1500, 16)


def test_a_mel_mismatch_is_refused(random_whisper):
    conv = np.zeros((16, 80, 3), np.float32)
    checkpoint = random_whisper(num_mels=128, **{"model.encoder.conv1.weight": conv})
    with pytest.raises(ModelError, match="128 mel bands"):
        load(checkpoint, WhisperConfig())


def test_a_wrong_shape_is_refused(random_whisper):
    checkpoint = random_whisper(**{"model.decoder.embed_positions.weight": np.zeros((100, 16), np.float32)})
    with pytest.raises(ModelError, match="embed_positions"):
        load(checkpoint, WhisperConfig())


def test_entries_of_the_generation_config_can_be_replaced(random_whisper):
    config = WhisperConfig(generation_config={"suppress_tokens": [5], "max_length": 100, "language": "fr"})
    loaded = load(random_whisper(), config)
    assert loaded.decoding.max_length == 100
    assert loaded.defaults.language == "fr"
    assert (5,) in [getattr(rule, "tokens", ()) for rule in loaded.decoding.rules]


def test_a_multilingual_model_can_be_taken_for_english_only(random_whisper):
    loaded = load(random_whisper(), WhisperConfig(is_multilingual=False))
    assert loaded.tokenizer.special.prompt("en", "transcribe", with_timestamps=True) == [50258]
