"""headrace for `languages.py`: what it makes of recordings, a line of JSON each.

Words of a setting: beam5, float32, sequential, fit (the encoder's context), zeros (after a recording's end,
instead of silence), vad, untimed (no timestamps), told (sequential: a window is told the text before it).
"""

import json
import sys
from pathlib import Path
from typing import Any

from headrace.engines.whisper import WhisperConfig, WhisperEngine

WORDS: dict[str, dict[str, Any]] = {
    "beam5": {"beam_size": 5},
    "float32": {"dtype": "float32"},
    "sequential": {"mode": "sequential"},
    "told": {"condition_on_previous_text": True},
    "fit": {"encoder_context": "fit"},
    "zeros": {"window_fill": "zeros"},
    "vad": {"vad": True},
    "untimed": {"return_timestamps": "none"},
}
AT_ONCE = 6


def main(model: str, listed: str, kept: str, *words: str) -> None:
    settings: dict[str, Any] = {"return_timestamps": "segment"}
    for word in words:
        settings |= WORDS[word]
    paths = [each["path"] for each in json.loads(Path(listed).read_text())]
    with (
        WhisperEngine(model, WhisperConfig(**settings)) as engine,
        Path(kept).open("a", encoding="utf-8") as file,
    ):
        for first in range(0, len(paths), AT_ONCE):
            some = paths[first : first + AT_ONCE]
            results: Any = engine.transcribe(some)
            for path, result in zip(some, results, strict=True):
                line = {
                    "path": path,
                    "language": result["language"],
                    "text": result["text"],
                    "temperatures": [each["temperature"] for each in result["segments"] or ()],
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
