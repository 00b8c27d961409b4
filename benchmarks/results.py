"""Finished rounds as tables."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wer import count_errors
from workloads import Workload

OURS, REFERENCE = "headrace bf16", "headrace f32"
HEADER = (
    "| engine | {rate} | headrace bf16 is | {quality} | same on the check | peak memory | load | rounds |"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one process of an engine measured."""

    seconds: float
    """Of the whole workload."""
    load_s: float
    peak_bytes: int
    versions: Mapping[str, str]
    check: Sequence[Any]
    """Tokens, or the text where the engine gives none, of the three inputs of the check."""
    texts: Sequence[str]
    token_ids: Sequence[Sequence[int] | None]

    @classmethod
    def read(cls, path: Path) -> "Round":
        """A round as an engine's script wrote it."""
        return cls(**json.loads(path.read_text()))


Rounds = Mapping[str, Sequence[Round]]


def write_results(
    folder: Path, comparisons: Mapping[str, tuple[Workload, Rounds]], failures: Mapping[str, str]
) -> None:
    """RESULTS.md and results.json, of what there is so far."""
    lines, record = [], {}
    for name, (workload, rounds) in comparisons.items():
        done = {engine: each for engine, each in rounds.items() if each}
        if not done:
            continue
        rows = [_row(workload, engine, done) for engine in done]
        record[name] = rows
        lines += [*_table(workload, sorted(rows, key=lambda row: -row["rate"])), ""]
    lines += [f"- {engine} did not run: {reason}" for engine, reason in failures.items()]
    (folder / "RESULTS.md").write_text("\n".join(lines) + "\n")
    (folder / "results.json").write_text(
        json.dumps({"workloads": record, "failures": dict(failures)}, indent=1)
    )


def _row(workload: Workload, engine: str, rounds: Rounds) -> dict[str, Any]:
    """The figures of one engine; ratios above 1 say that headrace is faster."""
    mine = rounds[engine]
    seconds = statistics.median(one.seconds for one in mine)
    ours = statistics.median(one.seconds for one in rounds[OURS]) if OURS in rounds else None
    return {
        "engine": engine,
        "rate": _work(workload) / seconds,
        "seconds": [one.seconds for one in mine],
        "ratio": seconds / ours if ours else None,
        "quality": _quality(workload, mine[-1], rounds),
        "same_check": _same_check(mine[-1], rounds),
        "peak_bytes": max(one.peak_bytes for one in mine),
        "load_s": statistics.median(one.load_s for one in mine),
        "is_slow": is_slow(engine, rounds),
        "versions": dict(mine[-1].versions),
    }


def is_slow(engine: str, rounds: Rounds) -> bool:
    """Whether a peer has shown to take more than twice the time of the best one."""
    best = {
        name: min(one.seconds for one in done) for name, done in rounds.items() if done and _is_peer(name)
    }
    return engine in best and best[engine] > 2 * min(best.values())


def _is_peer(engine: str) -> bool:
    return not engine.startswith("headrace")


def _table(workload: Workload, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    speech = bool(workload.references)
    title = (
        f"{len(workload.inputs)} recordings, {workload.seconds:.0f} s"
        if speech
        else (
            f"{len(workload.inputs)} prompts of {sum(map(len, workload.inputs))} tokens in all, "
            f"{workload.max_tokens} new ones each"
        )
    )
    names = {
        "rate": "audio s/s" if speech else "new tokens/s",
        "quality": "word error rate" if speech else "agrees with float32",
    }
    lines = [f"### {workload.name}: {title}", "", HEADER.format(**names), "| --- |" + " ---: |" * 7]
    for row in rows:
        cells = [
            row["engine"],
            f"{row['rate']:.1f}" if speech else f"{row['rate']:.0f}",
            "" if row["ratio"] is None else f"{row['ratio']:.2f}x",
            "" if row["quality"] is None else f"{100 * row['quality']:.2f} %",
            "" if row["same_check"] is None else f"{row['same_check']} of 3",
            f"{row['peak_bytes'] / 2**20:.0f} MiB",
            f"{row['load_s']:.1f} s",
            f"{len(row['seconds'])}{' (under half the best peer)' * row['is_slow']}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _work(workload: Workload) -> float:
    """Audio seconds, or new tokens."""
    return workload.seconds if workload.references else len(workload.inputs) * workload.max_tokens


def _quality(workload: Workload, done: Round, rounds: Rounds) -> float | None:
    """Word error rate, or the mean share of a row's tokens before the first that is not the reference's."""
    if workload.references:
        counts = [
            count_errors(said, heard) for said, heard in zip(workload.references, done.texts, strict=True)
        ]
        return sum(errors for errors, _ in counts) / sum(words for _, words in counts)
    if REFERENCE not in rounds or None in done.token_ids:
        return None
    pairs = zip(rounds[REFERENCE][-1].token_ids, done.token_ids, strict=True)
    return statistics.mean(_common(ours or [], theirs or []) / workload.max_tokens for ours, theirs in pairs)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two texts share from their beginning."""
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )


def _same_check(done: Round, rounds: Rounds) -> int | None:
    if REFERENCE not in rounds:
        return None
    return sum(
        _plain(mine) == _plain(wanted)
        for mine, wanted in zip(done.check, rounds[REFERENCE][-1].check, strict=True)
    )


def _plain(answer: Any) -> Any:
    """Words alone, of a text: engines differ in the spaces around it."""
    return answer.split() if isinstance(answer, str) else answer
