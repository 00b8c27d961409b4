"""Engines and checkpoints of the Whisper tests."""

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.engines.checkpoints import Checkpoint, open_checkpoint
from headrace.engines.whisper import WhisperConfig, WhisperEngine
from headrace.engines.whisper.loading import load
from headrace.engines.whisper.runner import Runner
from headrace.engines.whisper.tokenizer import WhisperTokenizer, special_tokens


@pytest.fixture(scope="session")
def tiny_en(whisper_tiny_checkpoint: Checkpoint) -> Iterator[WhisperEngine]:
    """whisper-tiny.en, bfloat16, eight slots; one retry, for the tests' time."""
    config = WhisperConfig(batch_size=8, temperatures=(0.0, 0.4))
    with WhisperEngine(whisper_tiny_checkpoint, config) as engine:
        yield engine


@pytest.fixture(scope="session")
def english(whisper_tiny_checkpoint: Checkpoint) -> WhisperTokenizer:
    return _tokenizer(whisper_tiny_checkpoint, is_multilingual=False)


@pytest.fixture(scope="session")
def multilingual(whisper_base_checkpoint: Checkpoint) -> WhisperTokenizer:
    return _tokenizer(whisper_base_checkpoint, is_multilingual=True)


def _tokenizer(checkpoint: Checkpoint, *, is_multilingual: bool) -> WhisperTokenizer:
    """The tokenizer as an engine has it, without the weights."""
    tokenizer = checkpoint.fast_tokenizer()
    added = tokenizer.added_tokens
    special = special_tokens(checkpoint.generation_config, added, is_multilingual=is_multilingual)
    return WhisperTokenizer(tokenizer, special)


@pytest.fixture(scope="session")
def random_runner(random_whisper: Callable[..., Checkpoint]) -> Runner:
    """Four slots of 20 tokens over random weights; a test leaves no window in them."""
    config = WhisperConfig(
        dtype="float32", batch_size=4, max_length=20, decode_burst=5, encoder_context="fit"
    )
    return load(random_whisper(num_mels=80), config).runner()


@pytest.fixture(scope="session")
def random_whisper(
    tmp_path_factory: pytest.TempPathFactory, whisper_base_checkpoint: Checkpoint
) -> Callable[..., Checkpoint]:
    """Makes a Whisper checkpoint with random weights, 16 wide, in the Hugging Face layout."""

    def make(num_mels: int = 128, layers: tuple[int, int] = (2, 1), **replaced: np.ndarray) -> Checkpoint:
        config = {
            "model_type": "whisper",
            "num_mel_bins": num_mels,
            "vocab_size": 51865,
            "d_model": 16,
            "encoder_layers": layers[0],
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_layers": layers[1],
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 32,
            "max_source_positions": 1500,
            "max_target_positions": 448,
        }
        tensors = {**_random_tensors(num_mels, layers), **replaced}
        folder = tmp_path_factory.mktemp("random-whisper")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        generation = dict(whisper_base_checkpoint.generation_config)
        (folder / "generation_config.json").write_text(json.dumps(generation))
        whisper_base_checkpoint.tokenizer().save_pretrained(folder)
        return open_checkpoint(str(folder))

    return make


def _random_tensors(num_mels: int, layers: tuple[int, int], width: int = 16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}

    def put(name: str, *shape: int) -> None:
        tensors[f"model.{name}"] = rng.normal(0, 0.2, shape).astype(np.float32)

    def linear(name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        put(f"{name}.weight", rows, columns)
        if bias:
            put(f"{name}.bias", rows)

    def norm(name: str) -> None:
        put(f"{name}.weight", width)
        put(f"{name}.bias", width)

    put("encoder.conv1.weight", width, num_mels, 3)
    put("encoder.conv1.bias", width)
    put("encoder.conv2.weight", width, width, 3)
    put("encoder.conv2.bias", width)
    put("encoder.embed_positions.weight", 1500, width)
    put("decoder.embed_tokens.weight", 51865, width)
    put("decoder.embed_positions.weight", 448, width)
    for half, count in zip(("encoder", "decoder"), layers, strict=True):
        norm(f"{half}.layer_norm")
        for i in range(count):
            name = f"{half}.layers.{i}"
            for attention in ("self_attn", "encoder_attn")[: 1 if half == "encoder" else 2]:
                for part in ("q", "k", "v", "out"):
                    linear(f"{name}.{attention}.{part}_proj", width, width, bias=part != "k")
                norm(f"{name}.{attention}_layer_norm")
            linear(f"{name}.fc1", 2 * width, width)
            linear(f"{name}.fc2", width, 2 * width)
            norm(f"{name}.final_layer_norm")
    return tensors
