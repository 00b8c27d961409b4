"""llama.cpp's continuous batching on one workload.

The server of its bindings runs in this process; prompts go to it over the loopback interface, all in one
request, since the bindings' own call gives texts and no tokens.
"""

import argparse
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import xllamacpp as llama
from measured import Answer, Answers, Loaded, run

CONTEXT_MULTIPLE = 256
"""Of a sequence's tokens: llama.cpp makes room for so many at once."""


def load(args: argparse.Namespace) -> Loaded:
    params = llama.CommonParams()
    params.model.path = args.model
    params.n_parallel, params.n_ctx = args.slots, args.slots * _row_tokens(args.workload)
    params.kv_unified = False  # else every row's attention goes over the keys of all rows
    params.cache_ram_mib = 0  # no copies of finished rows: none comes again
    params.fit_params = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.verbosity = 1  # errors
    if args.dtype == "float32":
        params.cache_type_k = params.cache_type_v = llama.ggml_type.GGML_TYPE_F32
    server = llama.Server(params)

    def answer(prompts: Sequence[list[int]], max_tokens: int) -> Answers:
        wanted = {
            "prompt": list(prompts),
            "n_predict": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,  # the end of a text is never chosen, where other engines go on past it
            "return_tokens": True,
            "response_fields": ["index", "content", "tokens"],
        }
        request = urllib.request.Request(
            f"{server.listening_address}/completion",
            json.dumps(wanted).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            answered = json.load(response)
        rows = answered if isinstance(answered, list) else [answered]  # one prompt has no list around it
        rows.sort(key=lambda row: row["index"])
        return [Answer(row["content"], row["tokens"]) for row in rows]

    return answer


def _row_tokens(path: Path) -> int:
    """What every row has room for in the cache: the longest one, and one more."""
    workload = json.loads(path.read_text())
    longest = max(map(len, [*workload["inputs"], *workload["warm_up"]])) + workload["max_tokens"] + 1
    return -(-longest // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE


if __name__ == "__main__":
    run(load, ["xllamacpp"])
