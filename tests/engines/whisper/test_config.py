"""Settings are checked before anything is loaded."""

import pytest

from headrace.engines.errors import ConfigError, ModelError
from headrace.engines.whisper import TranscribeOptions, WhisperConfig
from headrace.engines.whisper.config import ModelDims, timestamps_mode

DIMS = {
    "model_type": "whisper",
    "num_mel_bins": 128,
    "vocab_size": 51866,
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_layers": 4,
    "decoder_attention_heads": 20,
}


@pytest.mark.parametrize(
    ("chunk", "stride"),
    [(30.1, None), (0.0, None), (-1.0, None), (30.0, 15.0), (30.0, (20.0, 10.0)), (20.0, (-1.0, 2.0))],
)
def test_strides_that_leave_nothing_are_refused(chunk, stride):
    with pytest.raises(ValueError, match=r"chunk_length_s|stride_length_s"):
        TranscribeOptions(chunk_length_s=chunk, stride_length_s=stride)
    with pytest.raises(ValueError, match=r"chunk_length_s|stride_length_s"):
        WhisperConfig(chunk_length_s=chunk, stride_length_s=stride)


@pytest.mark.parametrize(
    ("value", "mode"),
    [
        (None, "none"),
        (False, "none"),
        ("none", "none"),
        (True, "segment"),
        ("segment", "segment"),
        ("word", "word"),
    ],
)
def test_timestamps_have_three_modes(value, mode: str):
    assert timestamps_mode(value) == mode


def test_unknown_timestamps_are_refused():
    with pytest.raises(ValueError, match="must be"):
        TranscribeOptions(return_timestamps="char")


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="'summarize'"):
        TranscribeOptions(task="summarize")


@pytest.mark.parametrize(
    "name", ["batch_size", "encoder_batch", "max_length", "decode_burst", "decode_threads"]
)
def test_counts_below_one_are_refused(name: str):
    with pytest.raises(ValueError, match=name):
        WhisperConfig(**{name: 0})


def test_a_fitted_context_is_filled_with_silence_alone():
    with pytest.raises(ConfigError, match="leave one out"):
        WhisperConfig(window_fill="zeros", encoder_context="fit")


def test_the_nearer_option_wins():
    call = TranscribeOptions(language="de")
    row = TranscribeOptions(language="fr", task="translate", chunk_length_s=20.0, stride_length_s=2.0)
    config = TranscribeOptions(
        task="transcribe", return_timestamps=True, chunk_length_s=30.0, stride_length_s=5.0
    )
    both = call.over(row).over(config)
    assert (both.language, both.task, both.return_timestamps) == ("de", "translate", True)
    assert (both.chunk_length_s, both.stride_length_s) == (20, 2)


def test_the_old_stride_does_not_go_with_a_new_chunk_length():
    call, config = (
        TranscribeOptions(chunk_length_s=8.0),
        TranscribeOptions(chunk_length_s=30.0, stride_length_s=5.0),
    )
    assert call.over(config).stride_length_s is None


def test_false_is_an_answer():
    assert TranscribeOptions(return_timestamps=False).over(TranscribeOptions(return_timestamps=True)) == (
        TranscribeOptions(return_timestamps=False)
    )


def test_dimensions_of_turbo_are_read():
    dims = ModelDims.of(DIMS)
    assert (dims.num_mels, dims.decoder_layers, dims.encoder_layers) == (128, 4, 32)
    assert (dims.window_samples, dims.max_tokens) == (480_000, 448)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "wav2vec2"}, "wav2vec2"),
        ({"num_mel_bins": 64}, "64"),
        ({"activation_function": "relu"}, "relu"),
        ({"scale_embedding": True}, "scale_embedding"),
        ({"d_model": 1281}, "1281"),
    ],
)
def test_models_that_are_not_understood_are_refused(change: dict, message: str):
    with pytest.raises(ModelError, match=message):
        ModelDims.of({**DIMS, **change})


def test_a_missing_dimension_is_named():
    with pytest.raises(ModelError, match="vocab_size"):
        ModelDims.of({key: value for key, value in DIMS.items() if key != "vocab_size"})
