"""transformers' generate on one workload, in batches of rows of like length."""

import argparse
from collections.abc import Sequence

import torch
from measured import Answer, Answers, Loaded, run
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(args: argparse.Namespace) -> Loaded:
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(args.model)

    @torch.inference_mode()
    def answer(prompts: Sequence[list[int]], max_tokens: int) -> Answers:
        answers: list[Answer] = [Answer("")] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for start in range(0, len(order), args.slots):
            rows = order[start : start + args.slots]
            for row, ids in zip(rows, _complete([prompts[row] for row in rows], max_tokens), strict=True):
                answers[row] = Answer(tokenizer.decode(ids), ids)
        return answers

    def _complete(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            pad_token_id=0,
        )
        return output[:, width:].tolist()

    return answer


if __name__ == "__main__":
    run(load, ["transformers", "torch"])
