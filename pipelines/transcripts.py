"""Transcripts as files of their own, beside the tables of the results."""

from collections.abc import Sequence
from typing import cast

from headrace.audio.subtitles import Format, SubtitleStyle, TimedText, render
from headrace.engines.whisper import Segment
from headrace.pipelines.config import TranscribeConfig
from headrace.pipelines.files import join, make_directory, parent, write_whole
from headrace.pipelines.tables import table_format

DIRECTORY = "__transcripts"
"""Below the output; readers of the results pass over it."""


def subtitle_style(config: TranscribeConfig) -> SubtitleStyle:
    """How subtitles are cut.

    Raises:
      ValueError: line width and count that cannot be.
    """
    return SubtitleStyle(max_line_width=config.max_line_width, max_line_count=config.max_line_count)


def write_transcript(
    config: TranscribeConfig, name: str, segments: Sequence[Segment], suffix: str = ""
) -> None:
    """Writes a recording's transcript in the formats that were asked for, NAME.FORMAT; again is the same.

    `name` is SOURCE#ROW; of files, whose row is 0, SOURCE. `suffix` (.ch0, .translation) comes before FORMAT.
    """
    timed = [_timed(segment) for segment in segments]
    file_name = _file_name(name) + suffix
    for kind in config.write:
        text = render(timed, cast(Format, kind), subtitle_style(config))
        path = join(config.output, DIRECTORY, f"{file_name}.{kind}")
        make_directory(parent(path))
        write_whole(path, text.encode(), scratch=join(config.output, "__run", "tmp"))


def _file_name(name: str) -> str:
    """A path below the directory, whatever the source is called."""
    source = name.removesuffix("#0")
    shown = source if table_format(source) in (None, "txt") else name
    parts = [part for part in shown.split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "transcript"


def _timed(segment: Segment) -> TimedText:
    words = tuple(TimedText(word.start_s, word.end_s, word.word) for word in segment.words)
    return TimedText(segment.start_s, segment.end_s, segment.text, words)
