"""Content for a report that asks for it: texts of rows, recordings with their segments beside a waveform."""

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import soundfile

from headrace.audio import SAMPLE_RATE, AudioError, Recording, load_audio
from headrace.pipelines.committed import result_tables
from headrace.pipelines.files import is_local, join
from headrace.pipelines.run_view import RunView

_NUM_ROWS = 20
_MAX_TEXT = 2000
# A page is to stay one that a browser opens at once: about 1 MB of sound at most.
_MAX_CLIP_S = 60.0
_MAX_SOUND_S = 180.0
_WIDTH, _HEIGHT = 900, 90


@dataclass(frozen=True, kw_only=True, slots=True)
class RowContent:
    """A row with what it says."""

    id: str
    """Its id."""
    prompt: str | None
    """What was asked, of a run that generates."""
    text: str
    """What came back."""
    recording: str
    """Waveform, segments and sound as HTML; empty where there is no recording to be had."""


def read_content(view: RunView) -> list[RowContent]:
    """The first rows of the run that did not fail."""
    found: list[RowContent] = []
    sound_left_s = _MAX_SOUND_S
    wanted = ["id", "source", "prompt", "text", "segments", "duration_s", "error"]
    for table in result_tables(view.output, wanted):
        for row in table.to_pylist():
            if len(found) == _NUM_ROWS:
                return found
            if row["error"] is not None:
                continue
            recording, seconds = _recording(view, row, sound_left_s)
            sound_left_s -= seconds
            found.append(
                RowContent(
                    id=row["id"],
                    prompt=_short(row["prompt"]) if row.get("prompt") else None,
                    text=_short(row["text"]),
                    recording=recording,
                )
            )
    return found


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ... ({len(text):,} characters)"


def _recording(view: RunView, row: dict[str, Any], sound_left_s: float) -> tuple[str, float]:
    """The HTML of a row's recording, and the seconds of sound in it."""
    path = join(view.record.root, row["source"]) if view.record.root else row["source"]
    is_file = view.record.job == "transcribe" and is_local(path) and os.path.isfile(path)
    if not is_file or path.endswith((".parquet", ".jsonl", ".csv", ".tar", ".arrow")):
        return "", 0.0
    try:
        recording = load_audio(path)
    except AudioError:
        return "", 0.0
    drawn = waveform_svg(recording.waveform, row["segments"] or [], recording.duration_s)
    seconds = min(recording.duration_s, _MAX_CLIP_S)
    if seconds > sound_left_s:
        return drawn, 0.0
    return drawn + _sound(recording, seconds), seconds


def waveform_svg(samples: np.ndarray, segments: Sequence[dict[str, Any]], duration_s: float) -> str:
    """A waveform of peaks, with a shade and a tooltip for each segment."""
    num_columns = min(_WIDTH // 2, max(len(samples), 1))
    edges = np.linspace(0, len(samples), num_columns + 1).astype(int)
    middle, shapes = _HEIGHT / 2, []
    for number, segment in enumerate(segments):
        left = _WIDTH * segment["start_s"] / max(duration_s, 1e-9)
        right = _WIDTH * min(segment["end_s"], duration_s) / max(duration_s, 1e-9)
        label = f"{segment['start_s']:.2f} to {segment['end_s']:.2f} s:{segment['text']}"
        shapes.append(
            f'<rect class="segment{number % 2}" x="{left:.1f}" y="0" width="{max(right - left, 1):.1f}" '
            f'height="{_HEIGHT}"><title>{escape(label)}</title></rect>'
        )
    scale = float(np.max(np.abs(samples))) if len(samples) else 0.0
    lines = []
    for column in range(num_columns):
        piece = samples[edges[column] : max(edges[column + 1], edges[column] + 1)]
        peak = float(np.max(np.abs(piece))) / scale if len(piece) and scale > 0 else 0.0
        x = _WIDTH * (column + 0.5) / num_columns
        half = max(peak * (middle - 2), 0.5)
        lines.append(f"M{x:.1f} {middle - half:.1f}V{middle + half:.1f}")
    label = f"waveform of {duration_s:.1f} s with {len(segments)} segments"
    return (
        f'<svg class="wave" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(shapes)}<path d="{"".join(lines)}"/></svg>'
    )


def _sound(recording: Recording, seconds: float) -> str:
    """The beginning of a recording as a player, inside the page."""
    buffer = io.BytesIO()
    samples = np.asarray(recording.waveform[: round(seconds * SAMPLE_RATE)])
    soundfile.write(buffer, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    data = base64.b64encode(buffer.getvalue()).decode()
    cut = "" if seconds >= recording.duration_s else f"<small>its first {seconds:.0f} s</small>"
    return f'<audio controls preload="none" src="data:audio/flac;base64,{data}"></audio>{cut}'
