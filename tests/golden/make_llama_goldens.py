"""Tiny random Llama checkpoints and what transformers + torch (float32) computes with them.

    pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    python tests/golden/make_llama_goldens.py tests/golden/llama

Writes, for each variant, llama/<variant>/ (config.json and safetensors as transformers saves them) and
llama/<variant>.npz with, for each prompt length n in PROMPT_LENGTHS:
    prompt_n       [n]      token ids
    last_logits_n  [V]      logits after the last prompt token
    top_ids_n      [n, 5]   the five largest logits of every row, largest first
    top_logits_n   [n, 5]
    logsumexp_n    [n]
    greedy_n       [48]     greedy continuation; eos does not stop it
    gaps_n         [48]     largest logit minus the second, at each greedy step
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT_LENGTHS = (5, 33, 130)
NUM_GREEDY = 48
MIN_GAP = 5e-3
"""A seed is taken only where every greedy step is decided by more than this, so that ids can be compared."""

BASE: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {},
    "gqa": {"num_key_value_heads": 2, "rms_norm_eps": 1e-6},
    "biases": {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    "llama3_rope": {
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,  # wavelengths 6, 29, 136...: kept, blended, divided
        },
    },
    "head_dim": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    },
    "sharded": {"num_key_value_heads": 2, "tie_word_embeddings": True},
}


def random_model(overrides: dict[str, Any], seed: int) -> LlamaForCausalLM:
    """A float32 model whose every parameter is random and large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**BASE | overrides, attn_implementation="eager"))
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in name:
            parameter.data = 1 + 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.3 * noise
        elif "embed" in name or "lm_head" in name:
            parameter.data = 0.4 * noise
        else:
            parameter.data = noise * 1.5 / parameter.shape[1] ** 0.5
    return model.eval()


@torch.no_grad()
def greedy(model: LlamaForCausalLM, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The greedy continuation and its top-2 gaps, every step recomputed from the whole prefix."""
    ids, gaps = list(prompt), []
    for _ in range(NUM_GREEDY):
        values, tokens = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        ids.append(int(tokens[0]))
        gaps.append(float(values[0] - values[1]))
    return ids[len(prompt) :], gaps


@torch.no_grad()
def golden_arrays(model: LlamaForCausalLM, seed: int) -> dict[str, np.ndarray]:
    """The arrays of the module docstring."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for n in PROMPT_LENGTHS:
        prompt = rng.integers(3, BASE["vocab_size"], n)
        logits = model(torch.tensor(prompt[None]), use_cache=False).logits[0]
        top = logits.topk(5)
        tokens, gaps = greedy(model, prompt.tolist())
        arrays |= {
            f"prompt_{n}": prompt.astype(np.int32),
            f"last_logits_{n}": logits[-1].numpy(),
            f"top_ids_{n}": top.indices.numpy().astype(np.int32),
            f"top_logits_{n}": top.values.numpy(),
            f"logsumexp_{n}": logits.logsumexp(-1).numpy(),
            f"greedy_{n}": np.array(tokens, np.int32),
            f"gaps_{n}": np.array(gaps, np.float32),
        }
    return arrays


@torch.no_grad()
def float64_error(model: LlamaForCausalLM, arrays: dict[str, np.ndarray]) -> float:
    """Largest difference of the longest prompt's last logits from the same model in float64."""
    n = PROMPT_LENGTHS[-1]
    exact = model.double()(torch.tensor(arrays[f"prompt_{n}"][None]).long(), use_cache=False).logits[0, -1]
    model.float()
    return float(np.abs(exact.numpy() - arrays[f"last_logits_{n}"]).max())


def save_legacy_config(folder: Path) -> None:
    """config.v4.json: the form of transformers 4 (rope_theta and rope_scaling apart, no head_dim)."""
    config = json.loads((folder / "config.json").read_text())
    del config["head_dim"]
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "torch_dtype": config.pop("dtype")}
    config["transformers_version"] = "4.43.0"
    (folder / "config.v4.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
    legacy = LlamaConfig.from_json_file(folder / "config.v4.json")
    assert legacy.rope_parameters == VARIANTS["llama3_rope"]["rope_parameters"], legacy.rope_parameters


def make_variant(name: str, out: Path) -> None:
    """Takes the first seed with clear greedy choices and writes the checkpoint and its arrays."""
    for seed in range(200):
        model = random_model(VARIANTS[name], seed)
        arrays = golden_arrays(model, seed)
        smallest = min(arrays[f"gaps_{n}"].min() for n in PROMPT_LENGTHS)
        if smallest > MIN_GAP:
            break
    else:
        raise SystemExit(f"{name}: no seed below 200 has all gaps above {MIN_GAP}")
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="80KB" if name == "sharded" else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name == "llama3_rope":
        save_legacy_config(folder)
    np.savez_compressed(out / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]
    reloaded = golden_arrays(
        LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").eval(), seed
    )
    assert all(np.array_equal(reloaded[key], arrays[key]) for key in arrays), name
    distinct = [len(set(arrays[f"greedy_{n}"].tolist())) for n in PROMPT_LENGTHS]
    error = float64_error(model, arrays)
    print(f"{name}: seed {seed}, smallest gap {smallest:.4f}, float32 error {error:.1e}, distinct {distinct}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make tiny Llama checkpoints and their goldens.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in VARIANTS:
        make_variant(name, out)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
