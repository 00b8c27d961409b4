"""Tiny Llama checkpoints with a tokenizer of their own, and engines over them."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
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
def native_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_model` with random weights and heads of 32, which the native kernels take in bfloat16."""
    directory = tmp_path_factory.mktemp("native") / "model"
    directory.mkdir()
    write_byte_tokenizer(directory)
    hidden, inner, heads, kv_heads = 64, 96, 4, 2
    config = json.loads((GOLDEN / "gqa" / "config.json").read_text())
    config |= {"hidden_size": hidden, "head_dim": 32, "intermediate_size": inner, "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    tensors = {"model.norm.weight": np.ones(hidden, np.float32)}

    def add(name: str, *shape: int) -> None:
        tensors[f"model.{name}.weight"] = rng.normal(0, 0.3, shape).astype(np.float32)

    add("embed_tokens", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"layers.{layer}"
        add(f"{prefix}.self_attn.q_proj", heads * 32, hidden)
        add(f"{prefix}.self_attn.k_proj", kv_heads * 32, hidden)
        add(f"{prefix}.self_attn.v_proj", kv_heads * 32, hidden)
        add(f"{prefix}.self_attn.o_proj", hidden, heads * 32)
        add(f"{prefix}.mlp.gate_proj", inner, hidden)
        add(f"{prefix}.mlp.up_proj", inner, hidden)
        add(f"{prefix}.mlp.down_proj", hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.{prefix}.{norm}.weight"] = np.ones(hidden, np.float32)
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="session")
def tiny_llm(tiny_model: Path):
    """A deterministic float32 engine of 8 rows over the tiny model.

    It lives long and sees rows of every kind: ahead of their use it would compile programs that none needs.
    """
    with LLM(str(tiny_model), tiny_config(deterministic=True, aot=False)) as llm:
        yield llm


def tiny_config(**changes) -> EngineConfig:
    """Small shapes that still take several chunks, pages and bursts a row."""
    settings = {
        "dtype": "float32",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "page_size": 16,
        "num_pages": 200,
        "decode_burst": 8,
    }
    return EngineConfig.of(**(settings | changes))


def open_golden(variant: str):
    """Checkpoint of a golden Llama variant."""
    return open_checkpoint(str(GOLDEN / variant))


FLOAT32 = jnp.dtype(jnp.float32)
