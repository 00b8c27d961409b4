"""A `headrace` command that writes down what its time until the first committed part is made of.

    python benchmarks/cold_start_parts.py STAMPS.json STARTED COMMAND... --no-supervise

STARTED is when this process was started, in seconds since 1970. Functions are wrapped by clocks; what they
do is not changed. Programs: what is waited for, as the Whisper engine loads or the first texts are made.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED_S = float(sys.argv[2])
MARKS: dict[str, float] = {}
SPENT: dict[str, float] = defaultdict(float)
LOADING = ("weights", "tokenizer")


def main() -> int:
    MARKS["python"] = time.time()
    import jax  # noqa: F401

    MARKS["jax"] = time.time()
    import apache_beam  # noqa: F401

    MARKS["Beam"] = time.time()
    from headrace.engines.checkpoints import Checkpoint
    from headrace.engines.llm import assembly
    from headrace.engines.programs import Programs
    from headrace.engines.whisper import loading
    from headrace.jobs import cli
    from headrace.pipelines import run, run_chunk
    from headrace.pipelines.generate import GenerateWork
    from headrace.pipelines.transcribe import TranscribeWork

    MARKS["headrace"] = time.time()
    _clock(run, "prepare_run", "checks")
    _clock(Checkpoint, "fast_tokenizer", "tokenizer")
    _clock(assembly, "load_weights", "weights")
    _clock(loading, "Weights", "weights")
    _clock(loading, "WhisperModel", "weights")
    _clock(Programs, "get", "programs")
    _clock(Programs, "precompile", "precompiled")
    for work in (GenerateWork, TranscribeWork):
        _clock(work, "load", "load")
    _clock(run_chunk, "write_part", "commit")
    return cli.main(sys.argv[3:])


def _clock(owner: Any, name: str, what: str) -> None:
    """Counts the time that a function takes, up to the first part."""
    call: Callable = getattr(owner, name)

    def clocked(*args: Any, **options: Any) -> Any:
        started_s = time.time()
        MARKS.setdefault(f"{what} begun", started_s)
        try:
            return call(*args, **options)
        finally:
            is_counted = what not in LOADING or ("load begun" in MARKS and "load ended" not in MARKS)
            if is_counted and "commit ended" not in MARKS:
                SPENT[what] += time.time() - started_s
                MARKS.setdefault(f"{what} ended", time.time())
                if what == "commit":
                    _write()

    setattr(owner, name, clocked)


def _write() -> None:
    marks, spent = MARKS, SPENT
    parts = {
        "Python": marks["python"] - STARTED_S,
        "import jax": marks["jax"] - marks["python"],
        "import Beam": marks["Beam"] - marks["jax"],
        "import headrace": marks["headrace"] - marks["Beam"],
        "checks": spent["checks"],
        "Beam": marks["load begun"] - marks["checks ended"],
        "weights": spent["weights"],
        "tokenizer": spent["tokenizer"],
        "rest of the load": spent["load"] - spent["weights"] - spent["tokenizer"] - spent["precompiled"],
        "programs": spent["precompiled"] + spent["programs"],
        "first row": marks["commit ended"] - marks["load ended"] - spent["programs"],
        "all": marks["commit ended"] - STARTED_S,
    }
    Path(sys.argv[1]).write_text(json.dumps({name: round(value, 2) for name, value in parts.items()}))


if __name__ == "__main__":
    sys.exit(main())
