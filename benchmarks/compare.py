"""headrace and its peers on the same weights and the same inputs, in turn.

    python benchmarks/compare.py llm --output build/bench-llm
    python benchmarks/compare.py whisper --table speech.jsonl --output build/bench-whisper

Every engine has a process, and but for headrace a virtual environment, of its own. Rounds go A B C A B C; a
finished round is kept under --output (in a folder of the model's, where it is not the default one), so that a
comparison that was broken off goes on. A peer that cannot be set up is named with the reason; one under half
of the best peer's rate runs one round and is marked. The tables, RESULTS.md and results.json, are written
after each round. --quick runs an eighth of one workload once, with one engine of each environment. Quality is
the word error rate, or for texts the share of a row's tokens before the first that differs from headrace's
own in float32.
"""

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peer_models
from engines_compared import ENGINES, Engine
from peer_environments import InstallError, environment
from results import Round, is_slow, write_results
from workloads import Workload, audio_workloads, text_workloads

from headrace.engines.checkpoints import open_checkpoint

PEERS = Path(__file__).parent / "peers"
ROUND_LIMIT_S = 3600
DEFAULT_MODELS = {"llm": "demo:smollm2-135m", "whisper": "demo:whisper-tiny.en"}
QUICK_WORKLOADS = {"llm": ["mixed-128"], "whisper": ["clips"]}


def main() -> None:
    args = _arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    workloads = [one for one in make_workloads(args) if not args.workloads or one.name in args.workloads]
    compared = _engines(args)
    failures: dict[str, str] = {}
    for workload in workloads:
        rounds = load_rounds(args.output, workload, compared)
        for number in range(args.rounds):
            for engine in compared:
                if (
                    engine.name in failures
                    or number < len(rounds[engine.name])
                    or is_slow(engine.name, rounds)
                ):
                    continue
                try:
                    done = run_round(engine, workload, number, args)
                except (InstallError, peer_models.FormatError, subprocess.SubprocessError) as failure:
                    failures[engine.name] = str(failure)
                    continue
                rounds[engine.name].append(done)
                print(
                    f"{workload.name}, {engine.name}, round {number + 1}: {done.seconds:.1f} s",
                    file=sys.stderr,
                )
                write_results(args.output, load_all(args, workloads), failures)
    write_results(args.output, load_all(args, workloads), failures)
    print((args.output / "RESULTS.md").read_text())


def make_workloads(args: argparse.Namespace) -> list[Workload]:
    """The workloads of a kind, written to the output for the engines' scripts."""
    if args.kind == "llm":
        workloads = text_workloads(open_checkpoint(args.model).tokenizer())
    else:
        workloads = audio_workloads(args.table, args.output)
    workloads = [one.quick() for one in workloads] if args.quick else workloads
    for workload in workloads:
        workload.write(args.output)
    return workloads


def run_round(engine: Engine, workload: Workload, number: int, args: argparse.Namespace) -> Round:
    """One engine's process over one workload.

    Raises:
      InstallError: the engine cannot be installed here.
      FormatError: it does not read the model, and the model cannot be turned into its format.
      subprocess.SubprocessError: it ended with an error, or took longer than an hour.
    """
    python = environment(engine.environment, args.environments)
    out = _round_path(args.output, workload, engine, number)
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [python, PEERS / engine.script, "--workload", args.output / f"{workload.name}.json"]
    command += [
        "--model",
        model_for(engine, args, python),
        "--dtype",
        engine.dtype,
        "--threads",
        args.threads,
    ]
    command += ["--slots", engine.slots.get(workload.name, engine.default_slots), "--out", out]
    done = subprocess.run(
        list(map(str, command)),
        env=_environ(),
        timeout=ROUND_LIMIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise subprocess.SubprocessError(f"exit {done.returncode}: {lines[-1] if lines else 'no message'}")
    return Round.read(out)


def model_for(engine: Engine, args: argparse.Namespace, python: Path) -> str:
    """The model in the engine's own format, converted at the first call."""
    models = args.models
    models.mkdir(parents=True, exist_ok=True)
    match engine.model_format:
        case "headrace":
            return args.model
        case "gguf":
            return str(peer_models.stored_gguf(args.model))
        case "gguf-f32":
            return str(peer_models.float32_gguf(args.model, models))
        case "huggingface":
            return str(peer_models.huggingface(args.model, models))
        case "ctranslate2":
            return str(peer_models.ctranslate2(args.model, models))
        case "openvino-fp32" | "openvino-int8":
            task = (
                "text-generation-with-past"
                if args.kind == "llm"
                else "automatic-speech-recognition-with-past"
            )
            source = peer_models.huggingface(args.model, models)
            return str(peer_models.openvino(source, python, task, engine.model_format.partition("-")[2]))
    raise AssertionError(engine.model_format)


def load_rounds(output: Path, workload: Workload, engines: Sequence[Engine]) -> dict[str, list[Round]]:
    """The finished rounds of each engine on a workload."""
    rounds: dict[str, list[Round]] = {}
    for engine in engines:
        paths = (_round_path(output, workload, engine, number) for number in itertools.count())
        rounds[engine.name] = [Round.read(path) for path in itertools.takewhile(Path.exists, paths)]
    return rounds


def load_all(args: argparse.Namespace, workloads: Sequence[Workload]) -> dict[str, tuple[Workload, Any]]:
    """Every workload with its rounds so far."""
    return {one.name: (one, load_rounds(args.output, one, ENGINES[args.kind])) for one in workloads}


def _engines(args: argparse.Namespace) -> list[Engine]:
    """Those that were named, else all; of a quick comparison the first of each environment."""
    engines = [one for one in ENGINES[args.kind] if not args.engines or one.name in args.engines]
    if args.quick and not args.engines:
        return list({one.environment: one for one in reversed(engines)}.values())[::-1]
    return engines


def _round_path(output: Path, workload: Workload, engine: Engine, number: int) -> Path:
    name = engine.name.replace(" ", "-").replace(",", "")
    return output / "rounds" / workload.name / f"{name}-{number}.json"


def _environ() -> dict[str, str]:
    """This process's environment without the settings that machines make for OpenBLAS."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["llm", "whisper"])
    parser.add_argument("--model", help="demo:smollm2-135m or demo:whisper-tiny.en where none is named")
    parser.add_argument(
        "--table", type=Path, help="recordings for whisper: .jsonl with file, text, language, variant"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--environments", type=Path, default=Path("build/bench-environments"))
    parser.add_argument("--workloads", nargs="*", default=[])
    parser.add_argument("--engines", nargs="*", default=[], help="all where none is named")
    parser.add_argument("--rounds", type=int, help="3 where none is given; of --quick 1")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="an eighth of one workload, a few engines")
    args = parser.parse_args()
    args.models = args.output.parent / "models"
    args.rounds = args.rounds or (1 if args.quick else 3)
    if args.model and args.model != DEFAULT_MODELS[args.kind]:
        args.output /= peer_models.folder_name(args.model)
    args.model = args.model or DEFAULT_MODELS[args.kind]
    if args.quick:
        args.output /= "quick"
        args.workloads = args.workloads or QUICK_WORKLOADS[args.kind]
    if args.kind == "whisper" and args.table is None:
        parser.error("whisper wants --table, the recordings and what is said in them")
    return args


if __name__ == "__main__":
    main()
