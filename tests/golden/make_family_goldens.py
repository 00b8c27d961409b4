"""Tiny random checkpoints of every family but Llama, and what transformers + torch (float32) computes.

    pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    python tests/golden/make_family_goldens.py tests/golden/families

Writes, for each variant, families/<variant>/ (config.json and safetensors as transformers saves them, weights
rounded to bfloat16) and families/<variant>.npz with, for each prompt length n of the variant, the arrays of
make_llama_goldens.py. The continuation is generated with transformers' cache and then checked, and its gaps
measured, by one pass over the whole text. Windows are of 24 tokens: no multiple of a page of 16.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_llama_goldens import NUM_GREEDY
from transformers import PreTrainedModel

PROMPT_LENGTHS = (5, 33, 270)
"""Within a page, past a page and a window, past a segment of 256 tokens of context."""

MIN_GAP = 1e-3
"""A seed is taken only where every greedy step is decided by ten times the tolerance of the logits."""

BASE: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2_BASE = {"vocab_size": 288, "n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.05, 1.1, 1.15, 1.2, 1.3],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0],
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "qwen2": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_yarn": ("Qwen3", {"head_dim": 16, "max_position_embeddings": 128, "rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 24}),
    "phi3_longrope": (
        "Phi3",
        {"hidden_size": 64, "original_max_position_embeddings": 128, "rope_parameters": LONGROPE},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "gpt2": ("GPT2", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "norm_topk_prob": True,
            "num_hidden_layers": 3,
            "mlp_only_layers": [0],
        },
    ),
}
HEADS = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}


def random_model(name: str, seed: int) -> PreTrainedModel:
    """A float32 model whose every parameter is random, so large that attention is far from uniform."""
    family, overrides = VARIANTS[name]
    base = GPT2_BASE | {"bos_token_id": 1, "eos_token_id": 2} if family == "GPT2" else BASE
    config = getattr(transformers, f"{family}Config")(**base | overrides, attn_implementation="eager")
    torch.manual_seed(seed)
    model = getattr(transformers, HEADS.get(family, f"{family}ForCausalLM"))(config)
    for key, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        is_norm = "norm" in key or ".ln_" in key
        if key.endswith("bias"):
            values = 0.3 * noise
        elif is_norm:
            # Gemma adds 1 itself. Its second norms are large, else a token predicts itself (tied embeddings).
            centre = 2.0 * ("_attention_" in key or "post_feed" in key) if "gemma" in name else 1.0
            values = centre + 0.2 * noise
        elif any(part in key for part in ("embed", "lm_head", "wte", "wpe")):
            values = (0.1 if "gemma" in name or family == "GPT2" else 0.4) * noise
        else:
            num_inputs = parameter.shape[0] if family == "GPT2" else parameter.shape[-1]
            values = noise * 1.5 / num_inputs**0.5
        parameter.data = values.bfloat16().float()
    return model.eval()


@torch.no_grad()
def golden_arrays(model: PreTrainedModel, seed: int) -> dict[str, np.ndarray] | None:
    """The arrays of the module docstring, None where a greedy step is nearly a tie."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    model.generation_config.eos_token_id = None
    for n in PROMPT_LENGTHS:
        prompt = torch.tensor(rng.integers(3, BASE["vocab_size"], n)[None])
        text = model.generate(prompt, max_new_tokens=NUM_GREEDY, do_sample=False)  # pyright: ignore
        logits = model(text, use_cache=False).logits[0]
        best = logits[n - 1 : -1].topk(2)
        gaps = best.values[:, 0] - best.values[:, 1]
        if gaps.min() < MIN_GAP:
            return None
        assert torch.equal(best.indices[:, 0], text[0, n:]), f"the cache changes the text of {n} tokens"
        top = model(prompt, use_cache=False).logits[0].topk(5)
        arrays |= {
            f"prompt_{n}": prompt[0].numpy().astype(np.int32),
            f"last_logits_{n}": model(prompt, use_cache=False).logits[0, -1].numpy(),
            f"top_ids_{n}": top.indices.numpy().astype(np.int32),
            f"top_logits_{n}": top.values.numpy(),
            f"greedy_{n}": text[0, n:].numpy().astype(np.int32),
            f"gaps_{n}": gaps.numpy(),
        }
    return arrays


def make_variant(name: str, out: Path) -> None:
    """Takes the first seed with clear greedy choices and writes the checkpoint and its arrays."""
    for seed in range(200):
        model = random_model(name, seed)
        arrays = golden_arrays(model, seed)
        if arrays is not None:
            break
    else:
        raise SystemExit(f"{name}: no seed below 200 has all gaps above {MIN_GAP}")
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(out / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]
    distinct = [len(set(arrays[f"greedy_{n}"].tolist())) for n in PROMPT_LENGTHS]
    print(f"{name}: seed {seed}, distinct {distinct}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make tiny checkpoints of every family and their goldens.")
    parser.add_argument("out", type=Path)
    parser.add_argument("variants", nargs="*", default=list(VARIANTS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.variants:
        make_variant(name, arguments.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
