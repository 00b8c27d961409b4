"""What the script of every engine shares: its arguments, its clock and the record of one round.

Standard library only, since each engine has a virtual environment of its own. An engine's script says how it
is loaded and how it answers a list of inputs; `run` does the rest and writes the round as JSON.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What an engine made of one input: a text, and its tokens where the engine gives them."""

    text: str
    token_ids: list[int] | None = None


Answers = Sequence[Answer]
Loaded = Callable[[Sequence[Any], int], Answers]
"""(inputs, new tokens an input) to answers: prompts are lists of token ids, recordings are paths."""


def run(load: Callable[[argparse.Namespace], Loaded], packages: Sequence[str]) -> None:
    """Load the engine, answer the check's inputs, warm up, time the workload, write the round.

    The time is that of the whole workload from its first input handed in to its last answer got.
    """
    args = _arguments()
    workload = json.loads(args.workload.read_text())
    started_s = time.monotonic()
    answer = load(args)
    load_s = time.monotonic() - started_s
    check = answer(workload["check"], workload["check_tokens"])
    answer(workload["warm_up"], workload["max_tokens"])
    started_s = time.monotonic()
    answers = answer(workload["inputs"], workload["max_tokens"])
    seconds = time.monotonic() - started_s
    record = {
        "seconds": seconds,
        "load_s": load_s,
        "peak_bytes": _peak_bytes(),
        "versions": dict(_versions(packages)),
        "check": [one.token_ids or one.text for one in check],
        "texts": [one.text for one in answers],
        "token_ids": [one.token_ids for one in answers],
    }
    args.out.write_text(json.dumps(record))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Path, required=True, help="JSON that workloads.py wrote")
    parser.add_argument("--model", required=True, help="the model in this engine's own format")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--slots", type=int, default=128, help="rows at a time, where the engine takes a number"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _versions(packages: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def _peak_bytes() -> int:
    """Peak resident memory of this process, or of the largest child that it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024
