"""`headrace bench`: what this machine could do, and how near the engines come to it."""

import argparse
import contextlib
from collections.abc import Iterator, Sequence

from headrace.engines.roofline import MachineLimits, Phase
from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser

DESCRIPTION = (
    "Measures this machine's matrix rate and bandwidth, runs a text or Whisper model, and says how much of "
    "them each phase uses."
)


def main(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    from headrace.engines.checkpoints import open_checkpoint
    from headrace.engines.roofline import device_name, measure_limits

    limits = measure_limits(args.seconds)
    print(f"device: {device_name()}\n{limits_text(limits)}")
    if args.model is None:
        return 0
    is_speech = open_checkpoint(args.model).config.get("model_type") == "whisper"
    with _profiled(args.profile):
        phases, notes = _measure_speech(args) if is_speech else _measure_text(args)
    peak = limits.matrix["float32" if args.dtype == "float32" else "bfloat16"]
    print("\n".join(["", *(phase_text(phase, peak, limits.copy) for phase in phases), *notes]))
    return 0


def limits_text(limits: MachineLimits) -> str:
    """The machine's limits, a line each."""
    rates = limits.matrix.items()
    lines = [f"products, {name:<9} {rate / 1e9:8.0f} G operations/s" for name, rate in rates]
    return "\n".join([*lines, f"copy {'':<14} {limits.copy / 1e9:8.1f} GB/s"])


def phase_text(phase: Phase, peak: float, bandwidth: float) -> str:
    """One line: rate, operations a unit, shares of the peak and the bandwidth, the rest of the time."""
    used = phase.utilisation(peak)
    read = 100 * phase.num_bytes / bandwidth / phase.seconds
    weights = f"weights {read:5.1f} % of the bandwidth  " if phase.num_bytes else ""
    return (
        f"{phase.name:<8} {phase.count / phase.seconds:9.1f} {phase.unit}/s  "
        f"{phase.flops / phase.count / 1e9:7.2f} GFLOP each  {100 * used:5.1f} % of the peak  "
        f"{weights}{100 * (1 - used):5.1f} % outside the products"
    )


def _measure_text(args: argparse.Namespace) -> tuple[list[Phase], list[str]]:
    from headrace.engines.llm import LLM, EngineConfig
    from headrace.engines.llm.measured import measure_phases

    config = EngineConfig.of(
        dtype=args.dtype, max_num_seqs=args.slots or 128, attention_backend=args.attention_backend
    )
    with LLM(args.model, config) as llm:
        phases = measure_phases(
            llm, num_rows=args.rows, prompt_tokens=args.prompt_tokens, max_tokens=args.max_tokens
        )
        counts = llm.metrics()
    steps, tokens = counts["slot_steps"], counts["prompt_tokens"] + counts["padding_tokens"]
    return phases, [
        f"slots in use: {100 * counts['busy_slot_steps'] / max(steps, 1):.1f} %",
        f"prefill padding: {100 * counts['padding_tokens'] / max(tokens, 1):.1f} %",
    ]


def _measure_speech(args: argparse.Namespace) -> tuple[list[Phase], list[str]]:
    from headrace.engines.whisper.measured import measure_phases
    from headrace.jobs.demo_inputs import speech_folder

    recordings = args.audio or sorted(map(str, speech_folder().rglob("*.wav")))
    return measure_phases(args.model, recordings, dtype=args.dtype, batch_size=args.slots), []


@contextlib.contextmanager
def _profiled(directory: str | None) -> Iterator[None]:
    if directory is None:
        yield
        return
    import jax

    with jax.profiler.trace(directory):
        yield


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="headrace bench", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--model", help="model spec; without one only the machine is measured")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--attention-backend", default="auto", help="of a text model; as for `generate`")
    parser.add_argument("--slots", type=int, help="rows or windows at a time")
    parser.add_argument("--rows", type=int, default=128, help="prompts (default: 128)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="tokens of each (default: 128)")
    parser.add_argument("--max-tokens", type=int, default=64, help="new tokens of each (default: 64)")
    parser.add_argument("--audio", nargs="*", help="recordings for a Whisper model (default: the demo's)")
    parser.add_argument("--seconds", type=float, default=0.5, help="time to look for each of the peaks")
    parser.add_argument("--profile", metavar="DIR", help="write a trace of JAX's profiler")
    args = parser.parse_args(list(argv))
    for name in ("rows", "prompt_tokens", "max_tokens", "seconds"):
        if getattr(args, name) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(args, name)}: give more than 0")
    return args
