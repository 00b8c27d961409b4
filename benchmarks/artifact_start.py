"""Start of an engine from an artifact and from its model, to the first token.

    python benchmarks/artifact_start.py --rounds 5

Every start is a process of its own; those from the model, with no compiled program in the cache, and those
from the artifact take turns. Shown are medians of the seconds to the first token, or to the transcript of one
second: from the beginning of the process, and from that of the engine's constructor (imports are done then).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.engines.cache import cache_home

TEXT = """
import json, sys, time
from headrace.engines.llm import LLM, SamplingParams
LLM.generate  # it is imported when it is first used
before_s = time.time()
with LLM(sys.argv[1]) as engine:
    assert engine.generate("The sea is", SamplingParams(max_tokens=1)).outputs[0].token_ids
    now_s = time.time()
    compiles = engine.metrics()["compiles"]
print(json.dumps([now_s - float(sys.argv[2]), now_s - before_s, compiles]))
"""
SPEECH = """
import json, sys, time
import numpy as np
from headrace.engines.whisper import WhisperEngine
before_s = time.time()
with WhisperEngine(sys.argv[1]) as engine:
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    engine.transcribe(noise, return_timestamps=False)
    now_s = time.time()
    compiles = engine.metrics()["compiles"]
print(json.dumps([now_s - float(sys.argv[2]), now_s - before_s, compiles]))
"""
MODELS = {"demo:smollm2-135m": TEXT, "demo:whisper-tiny.en": SPEECH}


def main() -> None:
    parser = argparse.ArgumentParser(description="Starts from a model and from its artifact.")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            compare(model, arguments.rounds, Path(folder))


def compare(model: str, rounds: int, folder: Path) -> None:
    artifact = folder / "artifact"
    command = [sys.executable, "-m", "headrace.jobs", "compile", model, "--output", str(artifact)]
    subprocess.run(command, check=True, env=environment(folder / "made"))
    start(MODELS[model], str(artifact), folder / "first")  # its files are read into memory
    seconds: dict[str, list[tuple[float, float]]] = {"cold": [], "artifact": []}
    for number in range(rounds):
        for kind, spec in (("cold", model), ("artifact", str(artifact))):
            process_s, engine_s, compiles = start(MODELS[model], spec, folder / f"{kind}-{number}")
            assert (compiles == 0) == (kind == "artifact"), f"{kind}: {compiles} compiles"
            seconds[kind].append((process_s, engine_s))
            print(f"{model} {kind}: {process_s:.1f} s, the engine {engine_s:.1f} s", flush=True)
    for place, what in enumerate(("whole process", "engine")):
        cold, warm = (statistics.median(each[place] for each in seconds[kind]) for kind in seconds)
        print(f"{model}, {what}: cold {cold:.2f} s, artifact {warm:.2f} s, {cold / warm:.1f} times")


def start(code: str, spec: str, cache: Path) -> tuple[float, float, float]:
    command = [sys.executable, "-c", code, spec, str(time.time())]
    done = subprocess.run(command, check=True, env=environment(cache), stdout=subprocess.PIPE, text=True)
    process_s, engine_s, compiles = json.loads(done.stdout.splitlines()[-1])
    return process_s, engine_s, compiles


def environment(cache: Path) -> dict[str, str]:
    """A cache that has the models and no programs, and none of JAX."""
    cache.mkdir()
    for name in ("models", "fingerprints"):
        (cache_home() / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(cache_home() / name)
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    return kept | {"HEADRACE_CACHE": str(cache)}


if __name__ == "__main__":
    main()
