"""The inputs of the comparisons, made by one seed, the same for every engine.

A workload is JSON: inputs (prompts as token ids, or paths of recordings), the new tokens of each, inputs to
warm up on, and three short ones whose greedy answers are compared before anything is timed.
"""

import json
import pydoc_data.topics
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

SEED = 20261129
MAX_TOKENS = 128
PREFIX_TOKENS = 256
CHECK_TOKENS = 32
SAMPLE_RATE = 16_000
LONG_FORM = "longform__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What every engine is given."""

    name: str
    inputs: Sequence[Any]
    """Token ids of prompts, or paths of recordings."""
    max_tokens: int
    """New tokens of each prompt; 0 for recordings."""
    warm_up: Sequence[Any]
    check: Sequence[Any]
    check_tokens: int
    references: Sequence[str] = ()
    """What is said in each recording."""
    seconds: float = 0.0
    """Of audio."""

    def quick(self) -> "Workload":
        """An eighth of the inputs; the new tokens stay."""
        count = -(-len(self.inputs) // 8)
        share = count / len(self.inputs)
        return replace(
            self, inputs=self.inputs[:count], references=self.references[:count], seconds=self.seconds * share
        )

    def write(self, folder: Path) -> Path:
        """The path of the file, NAME.json."""
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self)))
        return path


def text_workloads(tokenizer: Any) -> list[Workload]:
    """mixed-128, shared-prefix and mixed-512, of text of the standard library's documentation.

    Mixed prompts have 16 to 256 tokens. Those of shared-prefix share 256 and have 16 to 64 more.
    """
    topics = pydoc_data.topics.topics
    stream = tokenizer("\n".join(topics[name] for name in sorted(topics)), add_special_tokens=False)[
        "input_ids"
    ]
    draw = random.Random(SEED)

    def passage(low: int, high: int) -> list[int]:
        length = draw.randint(low, high)
        start = draw.randrange(len(stream) - length)
        return stream[start : start + length]

    mixed = [passage(16, 256) for _ in range(512)]
    prefix = passage(PREFIX_TOKENS, PREFIX_TOKENS)
    shared = [prefix + passage(16, 64) for _ in range(128)]
    warm_up, check = [passage(16, 256) for _ in range(8)], [passage(16, 48) for _ in range(3)]
    rows = {"mixed-128": mixed[:128], "shared-prefix": shared, "mixed-512": mixed}
    return [
        Workload(
            name=name,
            inputs=inputs,
            max_tokens=MAX_TOKENS,
            warm_up=[prefix + one for one in warm_up] if name == "shared-prefix" else warm_up,
            check=check,
            check_tokens=CHECK_TOKENS,
        )
        for name, inputs in rows.items()
    ]


def audio_workloads(table: Path, folder: Path) -> list[Workload]:
    """long (the long recording and all English clips in a row) and clips (the English files as they are).

    `table` is .jsonl with file (relative to it), text, language and variant.
    """
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows = [row for row in rows if row["language"] == "en"]
    long_rows = [row for row in rows if LONG_FORM in row["file"]]
    clips = [row for row in rows if row not in long_rows and not row.get("variant")]
    paths = [str((table.parent / row["file"]).resolve()) for row in clips]
    joined = folder / "joined.wav"
    waveforms = [_read(path) for path in paths]
    soundfile.write(joined, np.concatenate(waveforms), SAMPLE_RATE)
    long_paths = [str((table.parent / row["file"]).resolve()) for row in long_rows]
    shared = {"max_tokens": 0, "warm_up": paths[:4], "check": paths[:3], "check_tokens": 0}
    clip_seconds = sum(map(len, waveforms)) / SAMPLE_RATE
    return [
        Workload(
            name="long",
            inputs=[*long_paths, str(joined)],
            references=[*(row["text"] for row in long_rows), " ".join(row["text"] for row in clips)],
            seconds=clip_seconds + sum(len(_read(path)) for path in long_paths) / SAMPLE_RATE,
            **shared,
        ),
        Workload(
            name="clips",
            inputs=paths,
            references=[row["text"] for row in clips],
            seconds=clip_seconds,
            **shared,
        ),
    ]


def _read(path: str) -> np.ndarray:
    import librosa

    waveform, _ = librosa.load(path, sr=SAMPLE_RATE, mono=True)
    return waveform
