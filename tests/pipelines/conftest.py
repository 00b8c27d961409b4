"""A tiny random text model with a byte-level tokenizer, and inputs made of it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 32, 2, 4, 2, 64
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_llm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a Llama of 2 layers, 32 wide, with random weights and one token a byte."""
    directory = tmp_path_factory.mktemp("tiny-llm")
    vocab = _write_tokenizer(directory)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "bos_token_id": 0}))
    _write_weights(directory, vocab)
    return str(directory)


@pytest.fixture
def make_prompts(tmp_path: Path) -> Callable[[int], Path]:
    """Writes a .jsonl table of so many short prompts."""

    def make(count: int) -> Path:
        path = tmp_path / "data" / "prompts.jsonl"
        path.parent.mkdir(exist_ok=True)
        rows = [{"name": f"p{n}", "prompt": f"prompt number {n}", "n": n} for n in range(count)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make


def _write_tokenizer(directory: Path) -> int:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocab)


def _write_weights(directory: Path, vocab: int) -> None:
    rng = np.random.default_rng(0)
    head = HIDDEN // HEADS
    shapes = {"model.embed_tokens": (vocab, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj": (HEADS * head, HIDDEN),
            f"{prefix}.self_attn.k_proj": (KV_HEADS * head, HIDDEN),
            f"{prefix}.self_attn.v_proj": (KV_HEADS * head, HIDDEN),
            f"{prefix}.self_attn.o_proj": (HIDDEN, HEADS * head),
            f"{prefix}.mlp.gate_proj": (MLP, HIDDEN),
            f"{prefix}.mlp.up_proj": (MLP, HIDDEN),
            f"{prefix}.mlp.down_proj": (HIDDEN, MLP),
            f"{prefix}.input_layernorm": (HIDDEN,),
            f"{prefix}.post_attention_layernorm": (HIDDEN,),
        }
    tensors = {
        f"{name}.weight": rng.normal(0, 0.2, shape).astype(np.float32) + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    save_file(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()}, directory / "model.safetensors"
    )
