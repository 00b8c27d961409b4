"""What transformers + torch (float32) generates greedily from the GGUF of SmolLM2-135M-Instruct.

    pip install torch==2.13.0 transformers==5.24.0 accelerate gguf sentencepiece
    python tests/golden/make_smollm2_goldens.py MODEL.gguf PROMPTS.jsonl tests/golden/smollm2_greedy.json

The weights, their order and the tokenizer are read by transformers' own GGUF path. A prompt is completed as
it stands, without chat template and without BOS (the metadata say add_bos_token False); the model's eos
(<|im_end|>) stops a row. In the result token_ids includes that eos, finish_reason tells "stop" from "length",
and gaps holds, for each generated token, the largest logit minus the second.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

NUM_PROMPTS = 32
MAX_TOKENS = 64

CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?\n\nThink of 3 reasons  (at most)."},
    ],
    [
        {"role": "user", "content": "Übersetze: 'Guten Morgen' 😀"},
        {"role": "assistant", "content": "Good morning 😀"},
        {"role": "user", "content": " And 'こんにちは'? "},
    ],
]
TEXTS = [
    "Hello world",
    " leading space and  two  spaces",
    "In 1984 there were 12345 items, 3.14 each.",
    "indent:\n    x  42 = y  7\n\n\ttab",
    "It's we'll I'D they've 'quoted'",
    "naïve café Straße 日本語のテキスト 한국어 русский 😀👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
]
"""Digits stand alone here: the metadata name the "smollm" pre-tokenizer, which cuts at every digit first."""


def load_tokenizer(gguf: Path) -> Any:
    """The tokenizer of the file, with the digit split that transformers' GGUF path leaves out."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return tokenizer


@torch.no_grad()
def complete(model: Any, tokenizer: Any, prompt_ids: list[int]) -> dict[str, Any]:
    """One row of the goldens: ids, gaps and the ten largest logits after the prompt."""
    output = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    token_ids = output.sequences[0, len(prompt_ids) :].tolist()
    logits = torch.stack([step[0] for step in output.logits])
    assert logits.argmax(-1).tolist() == token_ids
    top2 = logits.topk(2).values
    gaps = (top2[:, 0] - top2[:, 1]).tolist()
    first = logits[0].topk(10)
    stopped = token_ids[-1] == model.config.eos_token_id
    return {
        "prompt_token_ids": prompt_ids,
        "token_ids": token_ids,
        "finish_reason": "stop" if stopped else "length",
        "text": tokenizer.decode(token_ids, skip_special_tokens=True),
        "min_gap": round(min(gaps), 6),
        "min_gap_step": gaps.index(min(gaps)),
        "gaps": [round(gap, 4) for gap in gaps],
        "first_top_ids": first.indices.tolist(),
        "first_top_logits": [round(value, 5) for value in first.values.tolist()],
    }


def chat_goldens(tokenizer: Any) -> list[dict[str, Any]]:
    """The chat template's text and ids, with the generation prompt."""
    goldens = []
    for messages in CONVERSATIONS:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        goldens.append({"messages": messages, "text": text, "token_ids": ids})
    return goldens


def write(path: Path, goldens: dict[str, Any]) -> None:
    """JSON with one line a row, so that a diff shows which rows changed."""
    lines = []
    for key, value in goldens.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the SmolLM2 goldens.")
    parser.add_argument("gguf", type=Path)
    parser.add_argument(
        "prompts", type=Path, help=f".jsonl with id and prompt; the first {NUM_PROMPTS} are taken"
    )
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.gguf)
    model = AutoModelForCausalLM.from_pretrained(
        args.gguf.parent, gguf_file=args.gguf.name, dtype=torch.float32
    )
    model.eval()
    rows = []
    for line in args.prompts.read_text().splitlines()[:NUM_PROMPTS]:
        prompt = json.loads(line)
        rows.append({"id": prompt["id"], **complete(model, tokenizer, tokenizer(prompt["prompt"]).input_ids)})
        print(rows[-1]["id"], len(rows[-1]["prompt_token_ids"]), len(rows[-1]["token_ids"]),
              rows[-1]["finish_reason"], rows[-1]["min_gap"], rows[-1]["min_gap_step"])  # fmt: skip
    goldens = {
        "model": f"demo:smollm2-135m ({args.gguf.name}), float32",
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "max_tokens": MAX_TOKENS,
        "eos_token_id": model.config.eos_token_id,
        "rows": rows,
        "chat": chat_goldens(tokenizer),
        "tokenizer": [{"text": text, "token_ids": tokenizer(text).input_ids} for text in TEXTS],
    }
    write(args.out, goldens)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
