"""Log-probabilities of a greedy continuation of the tiny Llama "gqa" by transformers + torch (float32).

    pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    python tests/golden/make_logprob_goldens.py tests/golden/llama

Needs what make_llama_goldens.py wrote there, and writes logprobs_gqa.npz beside it:
    tokens    [n + 48]      the prompt of 33 tokens and its greedy continuation
    logprobs  [n + 47, V]   float32 log-probabilities of the token after each but the last
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

PROMPT = 33


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    model = LlamaForCausalLM.from_pretrained(
        directory / "gqa", dtype=torch.float32, attn_implementation="eager"
    )
    arrays = np.load(directory / "gqa.npz")
    tokens = np.concatenate([arrays[f"prompt_{PROMPT}"], arrays[f"greedy_{PROMPT}"]])
    logits = model.eval()(torch.tensor(tokens[None].astype(np.int64)), use_cache=False).logits[0, :-1]
    np.savez_compressed(
        directory / "logprobs_gqa.npz", tokens=tokens, logprobs=logits.log_softmax(-1).numpy()
    )


if __name__ == "__main__":
    main()
