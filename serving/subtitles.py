"""Segments with times as subtitles."""

from collections.abc import Sequence

from headrace.engines.whisper.results import Segment


def to_srt(segments: Sequence[Segment]) -> str:
    """SubRip text: numbered blocks, times as 00:00:01,500."""
    blocks = [
        f"{number}\n{_clock(each.start_s, ',')} --> {_clock(each.end_s, ',')}\n{each.text.strip()}\n"
        for number, each in enumerate(segments, 1)
    ]
    return "\n".join(blocks)


def to_vtt(segments: Sequence[Segment]) -> str:
    """WebVTT text: blocks with times as 00:00:01.500."""
    blocks = [
        f"{_clock(each.start_s, '.')} --> {_clock(each.end_s, '.')}\n{each.text.strip()}\n"
        for each in segments
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
