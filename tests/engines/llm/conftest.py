"""Tiny Llama checkpoints with a tokenizer of their own, and engines over them."""

import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.llm import LLM, EngineConfig

GOLDEN = Path(__file__).parents[2] / "golden" / "llama"
VARIANTS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
NUM_SPECIAL = 32


def write_byte_tokenizer(directory: Path) -> None:
    """A tokenizer of 256 bytes after 32 special tokens: ids 1 and 2 begin and end a text."""
    specials = ["<unk>", "<s>", "</s>", *(f"<special-{index}>" for index in range(3, NUM_SPECIAL))]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a 2-layer Llama with grouped query heads and a byte tokenizer (288 tokens)."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    shutil.copytree(GOLDEN / "gqa", directory)
    write_byte_tokenizer(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_llm(tiny_model: Path):
    """A deterministic float32 engine of 8 rows over the tiny model."""
    with LLM(str(tiny_model), tiny_config(deterministic=True)) as llm:
        yield llm


def tiny_config(**changes) -> EngineConfig:
    """Small shapes that still take several chunks, pages and bursts a row."""
    settings = {
        "dtype": "float32",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "num_pages": 200,
        "decode_burst": 8,
    }
    return EngineConfig.of(**(settings | changes))


def open_golden(variant: str):
    """Checkpoint of a golden Llama variant."""
    return open_checkpoint(str(GOLDEN / variant))


FLOAT32 = jnp.dtype(jnp.float32)
