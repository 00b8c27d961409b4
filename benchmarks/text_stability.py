"""How many texts change where other rows share the batch, without `deterministic`.

    python benchmarks/text_stability.py prompts.jsonl --model demo:smollm2-135m --rows 256

The same rows are run in order, shuffled, and by an engine of another batch size; every other one is greedy,
the rest are drawn with seeds of their own. Prompts are not cached, so that each is computed in every run.
"""

import argparse
import json
import random
from pathlib import Path

from headrace.engines.llm import LLM, EngineConfig, SamplingParams

NUM_OUTPUTS = 64
MAX_PROMPT = 160


def main() -> None:
    parser = argparse.ArgumentParser(description="Share of texts that depend on their companions.")
    parser.add_argument("prompts", type=Path, help="table of prompts, .jsonl")
    parser.add_argument("--model", default="demo:smollm2-135m")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--deterministic", action="store_true")
    arguments = parser.parse_args()
    lines = arguments.prompts.read_text(encoding="utf-8").splitlines()[: arguments.rows]
    prompts = [json.loads(line)["prompt"] for line in lines]
    options = {"deterministic": arguments.deterministic, "enable_prefix_caching": False, "max_model_len": 256}
    order = list(range(len(prompts)))
    shuffled = random.Random(0).sample(order, len(order))
    with LLM(arguments.model, EngineConfig.of(max_num_seqs=64, **options)) as llm:
        texts = run(llm, prompts, order)
        report("shuffled", texts, run(llm, prompts, shuffled))
    if not arguments.deterministic:
        with LLM(arguments.model, EngineConfig.of(max_num_seqs=16, **options)) as llm:
            report("16 rows at a time in place of 64", texts, run(llm, prompts, order))


def run(llm: LLM, prompts: list[str], order: list[int]) -> dict[int, tuple[int, ...]]:
    """Tokens of each row."""
    greedy = SamplingParams(max_tokens=NUM_OUTPUTS, ignore_eos=True)
    params = [greedy if row % 2 else greedy.replace(temperature=1.0, top_p=0.95, seed=row) for row in order]
    cut = {"max_length": MAX_PROMPT, "truncation": True, "truncation_side": "right"}
    outputs = llm.generate([prompts[row] for row in order], params, tokenizer_kwargs=cut)
    assert isinstance(outputs, list)
    return {row: output.outputs[0].token_ids for row, output in zip(order, outputs, strict=True)}


def report(name: str, texts: dict[int, tuple[int, ...]], others: dict[int, tuple[int, ...]]) -> None:
    for kind, remainder in (("greedy", 1), ("drawn", 0)):
        rows = [row for row in texts if row % 2 == remainder]
        changed = sum(texts[row] != others[row] for row in rows)
        print(f"{name}, {kind}: {changed} of {len(rows)} texts differ", flush=True)


if __name__ == "__main__":
    main()
