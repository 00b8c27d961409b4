"""How time and memory grow: curves of throughput and peak memory, with exponents where cost is linear.

    python benchmarks/scale.py rows --output build/scale          # 1 to 10,000 prompts
    python benchmarks/scale.py prompt-length --output build/scale
    python benchmarks/scale.py slots --output build/scale
    python benchmarks/scale.py audio-length --output build/scale
    python benchmarks/scale.py workers --output build/scale
    python benchmarks/scale.py figure --output build/scale --figure benchmarks/scale.svg

Every point is a process of its own, so that its peak memory is its own too; rounds go through all points
in turn. Finished points are kept under --output: a curve that was broken off goes on. A curve's command ends
with its table, and with exit code 1 where cost is not linear that ought to be. `--quick` takes small points.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scale_figure

POINT = Path(__file__).parent / "scale_point.py"
LINEAR_WITHIN = 0.15
"""How far from 1 the exponent of a linear cost may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One quantity that grows while all else stays."""

    title: str
    points: Sequence[int]
    quick: Sequence[int]
    unit: str
    """What is counted a second."""
    linear_from: int | None
    """From here on seconds grow in proportion; None: they ought not to, as more is done at a time."""
    linear_to: int = sys.maxsize


CURVES = {
    "rows": Curve(
        title="prompts",
        points=(1, 10, 100, 1000, 10_000),
        quick=(1, 10, 100),
        unit="new tokens/s",
        linear_from=1000,
    ),
    "prompt-length": Curve(
        title="prompt tokens",
        points=(16, 64, 256, 1024, 4096, 8000),
        quick=(16, 64, 256),
        unit="prompt tokens/s",
        linear_from=256,
        linear_to=1024,
    ),
    "slots": Curve(
        title="slots",
        points=(2, 8, 32, 128, 256, 512),
        quick=(2, 8, 32),
        unit="new tokens/s",
        linear_from=None,
    ),
    "audio-length": Curve(
        title="seconds of audio",
        points=(30, 120, 480, 1800, 3600),
        quick=(30, 120, 240),
        unit="audio s/s",
        linear_from=480,
    ),
    "workers": Curve(
        title="worker processes",
        points=(1, 2),
        quick=(1, 2),
        unit="new tokens/s",
        linear_from=None,
    ),
}
"""Prompt lengths are linear while attention is a small part of the work; audio, once windows fill a batch."""


def main() -> None:
    args = _arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.curve == "figure":
        measured = {name: summary for name in CURVES if (summary := summarise(name, args))}
        args.figure.write_text(scale_figure.draw(measured))
        print(f"{', '.join(measured)}: {args.figure}")
        return
    curve = CURVES[args.curve]
    for number in range(args.rounds):
        for size in _sizes(curve, args):
            path = _path(args, args.curve, size, number)
            if not path.exists():
                measure(args, size, path)
    summary = summarise(args.curve, args)
    (args.output / f"{args.curve}.json").write_text(json.dumps(summary, indent=1))
    print("\n".join(table(summary)))
    sys.exit(summary["is_linear"] is False)


def measure(args: argparse.Namespace, size: int, path: Path) -> None:
    """One point, by a process of its own; its record is written whole or not at all."""
    command = [sys.executable, str(POINT), args.curve, str(size), *(["--quick"] if args.quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{args.curve} {size} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    record = json.loads(done.stdout.splitlines()[-1])
    print(f"{args.curve} {size}: {record['seconds']:.1f} s, {record['peak_mib']:.0f} MiB", file=sys.stderr)
    scratch = path.with_suffix(".tmp")
    scratch.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text(json.dumps(record))
    scratch.replace(path)


def summarise(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Medians of a curve's finished points, and its exponent; empty where there are none."""
    curve = CURVES[name]
    points = []
    for size in _sizes(curve, args):
        paths = [_path(args, name, size, number) for number in range(args.rounds)]
        done = [json.loads(path.read_text()) for path in paths if path.exists()]
        if done:
            middle = {key: statistics.median(one[key] for one in done) for key in done[0]}
            points.append(
                {"size": size, "rounds": len(done), "rate": middle["count"] / middle["seconds"], **middle}
            )
    if not points:
        return {}
    exponent = None
    if curve.linear_from is not None:
        linear = [one for one in points if curve.linear_from <= one["size"] <= curve.linear_to]
        exponent = fit_exponent([(one["size"], one["seconds"]) for one in linear])
    is_linear = None if exponent is None else abs(exponent - 1) <= LINEAR_WITHIN
    return {
        "curve": name,
        "title": curve.title,
        "unit": curve.unit,
        "points": points,
        "exponent": exponent,
        "is_linear": is_linear,
    }


def fit_exponent(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The p of seconds ~ size ** p, by least squares of the logarithms; None for fewer than two points."""
    if len(pairs) < 2:
        return None
    logs = [(math.log(size), math.log(seconds)) for size, seconds in pairs]
    slope, _ = statistics.linear_regression(*zip(*logs, strict=True))
    return slope


def table(summary: dict[str, Any]) -> list[str]:
    """A curve as Markdown."""
    lines = [f"| {summary['title']} | s | {summary['unit']} | peak memory | rounds |", "| ---: " * 5 + "|"]
    lines += [
        f"| {one['size']:,} | {one['seconds']:.1f} | {one['rate']:.1f} | {one['peak_mib']:.0f} MiB "
        f"| {one['rounds']} |"
        for one in summary["points"]
    ]
    if summary["exponent"] is not None:
        verdict = "linear" if summary["is_linear"] else "NOT LINEAR"
        lines += ["", f"seconds grow with the power {summary['exponent']:.2f}: {verdict}"]
    return lines


def _sizes(curve: Curve, args: argparse.Namespace) -> Sequence[int]:
    return args.points or (curve.quick if args.quick else curve.points)


def _path(args: argparse.Namespace, name: str, size: int, number: int) -> Path:
    return args.output / ("quick" if args.quick else "points") / f"{name}-{size}-{number}.json"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("curve", choices=(*CURVES, "figure"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--points", type=int, nargs="*", help="in place of the curve's own")
    parser.add_argument("--quick", action="store_true", help="small points, an eighth of the work")
    parser.add_argument("--figure", type=Path, default=Path("benchmarks/scale.svg"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
