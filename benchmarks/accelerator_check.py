"""headrace on a GPU or TPU: builds it, checks it, times it, in under five minutes.

    python benchmarks/accelerator_check.py --build cuda      # an environment first, then the checks in it
    python benchmarks/accelerator_check.py --platform cuda   # with this Python's headrace
    python benchmarks/accelerator_check.py --platform cpu    # a dry run: no accelerator is wanted

Every check has a process of its own, as a device and its memory go to one process at a time. It passes,
fails, or is skipped with the reason, as are checks for which no time is left. The record is
written to --out after each. Exit code 1 where a check failed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHECKS = Path(__file__).parent / "accelerator_checks.py"
NAMES = (
    "device",
    "attention xla",
    "attention native",
    "attention pallas-gpu",
    "attention pallas-tpu",
    "tokens xla",
    "tokens native",
    "tokens pallas-gpu",
    "tokens pallas-tpu",
    "transcripts",
    "text speed xla",
    "text speed native",
    "text speed pallas-gpu",
    "text speed pallas-tpu",
    "Whisper speed",
    "headrace bench",
    "headrace generate",
)
SHORTEST_S = 5.0
"""Time below which no check is begun."""


def main() -> None:
    args = _arguments()
    started_s = time.monotonic()
    python = Path(sys.executable)
    record: dict[str, Any] = {"platform": args.platform, "checks": {}}
    if args.build:
        python = build(args.platform)
        record["build_s"] = round(time.monotonic() - started_s, 1)
        print(f"built in {record['build_s']} s: {python}", flush=True)
    for name in args.only or NAMES:
        left_s = args.limit_s - (time.monotonic() - started_s)
        result = run(python, name, args.platform, left_s, full=args.full)
        record["checks"][name] = result
        record["total_s"] = round(time.monotonic() - started_s, 1)
        print(_line(name, result), flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1))
    states = [result["state"] for result in record["checks"].values()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    print(f"{counts}; {record['total_s']} s; {args.out}")
    sys.exit("failed" in states)


def build(platform: str) -> Path:
    """The Python of an environment that holds headrace with the extra of a platform."""
    environment = ROOT / "build" / f"accelerator-{platform}"
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    extra = {"cuda": "[cuda]", "tpu": "[tpu]"}.get(platform, "")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", "-e", f"{ROOT}{extra}"], check=True)
    return python


def run(python: Path, name: str, platform: str, left_s: float, *, full: bool) -> Mapping[str, Any]:
    """What became of a check: its state, the reason or the figures, and its seconds."""
    if left_s < SHORTEST_S:
        return {"state": "skipped", "reason": "no time was left", "seconds": 0.0}
    command = [str(python), str(CHECKS), name, *(["--full"] if full else [])]
    environ = {**os.environ, "JAX_PLATFORMS": platform if platform == "cpu" else f"{platform},cpu"}
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environ, timeout=left_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"it was stopped after {left_s:.0f} s: no more time was left"
        return {"state": "skipped", "reason": reason, "seconds": round(left_s, 1)}
    seconds = round(time.monotonic() - started_s, 1)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        return {"state": "failed", "reason": reason, "log": lines[-30:], "seconds": seconds}
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


def _line(name: str, result: Mapping[str, Any]) -> str:
    figures = {
        key: value for key, value in result.items() if key not in ("state", "seconds", "log", "output")
    }
    told = ", ".join(f"{key} {value}" if key != "reason" else str(value) for key, value in figures.items())
    return f"{result['state']:<8} {name:<22} {result['seconds']:6.1f} s  {told}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--platform", choices=("cuda", "tpu", "cpu"))
    parser.add_argument("--build", choices=("cuda", "tpu", "cpu"), help="make an environment for it first")
    parser.add_argument("--limit-s", type=float, default=295.0, help="seconds for all of it (default: 295)")
    parser.add_argument("--full", action="store_true", help="sizes of an accelerator on a CPU, too")
    parser.add_argument("--only", nargs="*", choices=NAMES, metavar="CHECK", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=Path("build/accelerator-check.json"))
    args = parser.parse_args()
    if args.platform is None and args.build is None:
        parser.error("name the device: --build cuda, --platform cuda, or --platform cpu for a dry run")
    args.platform = args.platform or args.build
    return args


if __name__ == "__main__":
    main()
