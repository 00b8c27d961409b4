"""WebDataset .tar files as tables: files of one name with several endings are one row.

Its columns are `__key__`, the endings (`txt`, `json`, ...), `audio` for the file whose ending is one of
audio, and the fields of the .json file where no other column has their name.
"""

import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO

import pyarrow as pa

from headrace.pipelines.files import open_input
from headrace.pipelines.line_tables import json_type
from headrace.pipelines.scans import TableRow, TableScan, malformed, wider_type

KEY = "__key__"
AUDIO = "audio"
_AUDIO_ENDINGS = {"wav", "flac", "mp3", "m4a", "ogg", "oga", "opus", "webm", "mp4", "aac", "aiff", "aif"}
_AUDIO_ENDINGS |= {"au", "mka", "mkv", "mov", "wma", "amr", "sph"}
# Rows that are looked at to know the columns.
_COLUMN_SAMPLE = 100


def scan_tar(path: str, *, stride: int, typed: Sequence[str]) -> TableScan:
    """Counts the rows of a .tar file; its columns are those of its first hundred rows."""
    columns: dict[str, None] = {KEY: None}
    types: dict[str, pa.DataType] = {}
    offsets, rows = [], 0
    with open_input(path) as file:
        for offset, members in _samples(file):
            if rows % stride == 0:
                offsets.append(offset)
            columns.update({_column(name): None for name in members})
            if rows < _COLUMN_SAMPLE or typed:
                try:
                    values = _values(file, members, {*typed, "json"})
                except ValueError:  # the row will be one with an error
                    values = {}
                columns.update(dict.fromkeys(values) if rows < _COLUMN_SAMPLE else {})
                for name in typed:
                    types[name] = wider_type(types.get(name, pa.null()), json_type(values.get(name)))
            rows += 1
    return TableScan(rows=rows, columns=tuple(columns), types=types, offsets=tuple(offsets))


def read_tar(path: str, start: int, stop: int, offset: int, columns: Sequence[str]) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a .tar file; row `start` begins at byte `offset`."""
    with open_input(path) as file:
        file.seek(offset)
        for row, (_, members) in zip(range(start, stop), _samples(file), strict=False):
            try:
                yield TableRow(row, _values(file, members, set(columns)))
            except ValueError:
                yield malformed(row, "its .json or .txt file is not what its ending says")


def _samples(file: BinaryIO) -> Iterator[tuple[int, Mapping[str, tarfile.TarInfo]]]:
    """Files of one name from the file's position on, by their endings, with the byte of the first."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            files = (member for member in archive if member.isfile() and not _is_hidden(member.name))
            for _, group in groupby(files, key=lambda member: _split(member.name)[0]):
                members = list(group)
                yield members[0].offset, {_split(member.name)[1]: member for member in members}
    except tarfile.TarError as error:
        raise OSError(f"it is not a .tar file that can be read: {error}") from error


def _split(name: str) -> tuple[str, str]:
    """The name up to the first dot of its last part, and the rest: the row, and the column."""
    directory, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return f"{directory}{slash}{stem}", ending.lower()


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


def _column(ending: str) -> str:
    return AUDIO if ending in _AUDIO_ENDINGS else ending


def _values(file: BinaryIO, members: Mapping[str, tarfile.TarInfo], wanted: set[str]) -> dict[str, Any]:
    """The values of the columns `wanted`; files of other columns are not read."""
    first = next(iter(members.values()))
    values: dict[str, Any] = {KEY: _split(first.name)[0]}
    fields: dict[str, Any] = {}
    for ending, member in members.items():
        column = _column(ending)
        if column == "json":
            fields = _object(_content(file, member))
            values[column] = fields
        elif column in wanted:
            content = _content(file, member)
            if column == AUDIO:
                values[column] = {"bytes": content, "path": member.name}
            else:
                values[column] = content.decode() if ending in ("txt", "text", "transcript") else content
    return {**fields, **values}


def _content(file: BinaryIO, member: tarfile.TarInfo) -> bytes:
    file.seek(member.offset_data)
    return file.read(member.size)


def _object(content: bytes) -> dict[str, Any]:
    found = json.loads(content)
    return found if isinstance(found, dict) else {}
