"""faster-whisper for `languages.py`: what it makes of recordings, a line of JSON each.

Words of a setting: beam5, int8 (int8_float32), batched (8 windows that voice detection cuts), told (a window
is told the text before it), silence. What a recording leaves of a window faster-whisper fills with zeros of
the scaled spectrogram, a faint noise; with silence it is filled as headrace does it where not told otherwise.
"""

import json
import sys
from pathlib import Path
from typing import Any

import faster_whisper.transcribe
import numpy as np
from faster_whisper import BatchedInferencePipeline, WhisperModel

WORDS: dict[str, dict[str, Any]] = {
    "beam5": {"beam_size": 5},
    "told": {"condition_on_previous_text": True},
    "batched": {"batch_size": 8},
    "int8": {},
    "silence": {},
}


def main(model: str, listed: str, kept: str, *words: str) -> None:
    settings: dict[str, Any] = {"beam_size": 1, "best_of": 1, "condition_on_previous_text": False}
    for word in words:
        settings |= WORDS[word]
    if "silence" in words:
        vars(faster_whisper.transcribe)["pad_or_trim"] = filled_with_silence
    compute_type = "int8_float32" if "int8" in words else "float32"
    whole = WhisperModel(model, device="cpu", compute_type=compute_type, cpu_threads=2)
    engine: Any = BatchedInferencePipeline(whole) if "batched" in words else whole
    with Path(kept).open("a", encoding="utf-8") as file:
        for each in json.loads(Path(listed).read_text()):
            found, info = engine.transcribe(each["path"], **settings)
            segments = list(found)
            line = {
                "path": each["path"],
                "language": info.language,
                "text": "".join(segment.text for segment in segments),
                "temperatures": [segment.temperature for segment in segments],
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()


def filled_with_silence(spectrogram: np.ndarray, length: int = 3000) -> np.ndarray:
    """The window with digital silence after it: 8 decades, which are 2 after scaling, below its peak."""
    window = spectrogram[..., :length]
    missing = ((0, 0),) * (window.ndim - 1) + ((0, length - window.shape[-1]),)
    return np.pad(window, missing, constant_values=float(window.max()) - 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
