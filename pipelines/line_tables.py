"""Tables of lines: .jsonl (one object a line; .gz too), .csv (with a header), .txt (one prompt a line).

A scan notes the byte where each chunk begins, so that a chunk is read without the rows before it. In .txt
every line is a row, the empty ones too; in .jsonl and .csv empty lines are no rows.
"""

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import pyarrow as pa

from headrace.pipelines.files import open_input, without_query
from headrace.pipelines.scans import TableRow, TableScan, malformed, wider_type

TEXT_COLUMN = "prompt"
# Objects of a .jsonl file that are looked at to know its columns.
_COLUMN_SAMPLE = 1000
_MAX_CSV_FIELD_BYTES = 1 << 30


def scan_text(path: str, *, stride: int) -> TableScan:
    """Counts the lines of a .txt file."""
    with _opened(path) as file:
        _refuse_utf16(file)
        rows, offsets = 0, []
        for row, (offset, _) in enumerate(_lines(file)):
            if row % stride == 0:
                offsets.append(offset)
            rows = row + 1
    return TableScan(
        rows=rows, columns=(TEXT_COLUMN,), types={TEXT_COLUMN: pa.string()}, offsets=tuple(offsets)
    )


def read_text(path: str, start: int, stop: int, offset: int) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a .txt file; row `start` begins at byte `offset`."""
    with _opened(path) as file:
        for row, (_, line) in zip(range(start, stop), _lines(file, offset), strict=False):
            try:
                yield TableRow(row, {TEXT_COLUMN: line.decode("utf-8").rstrip("\r\n")})
            except UnicodeDecodeError as error:
                yield malformed(row, f"it is not UTF-8 (byte {error.start})")


def scan_jsonl(path: str, *, stride: int, typed: Sequence[str]) -> TableScan:
    """Counts the objects of a .jsonl file; its columns are those of its first thousand objects."""
    columns: dict[str, None] = {}
    types: dict[str, pa.DataType] = {}
    offsets, rows = [], 0
    with _opened(path) as file:
        _refuse_utf16(file)
        for offset, line in _filled_lines(file):
            if rows == 0:
                _refuse_array(line)
            if rows % stride == 0:
                offsets.append(offset)
            if rows < _COLUMN_SAMPLE or typed:
                values = _parse(rows, line).values
                columns.update(dict.fromkeys(values) if rows < _COLUMN_SAMPLE else {})
                for name in typed:
                    types[name] = wider_type(types.get(name, pa.null()), json_type(values.get(name)))
            rows += 1
    return TableScan(rows=rows, columns=tuple(columns), types=types, offsets=tuple(offsets))


def read_jsonl(path: str, start: int, stop: int, offset: int) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a .jsonl file; row `start` begins at byte `offset`."""
    with _opened(path) as file:
        for row, (_, line) in zip(range(start, stop), _filled_lines(file, offset), strict=False):
            yield _parse(row, line)


def scan_csv(path: str, *, stride: int, typed: Sequence[str]) -> TableScan:
    """Counts the records of a .csv file; every column is text."""
    offsets, rows = [], 0
    with _opened(path) as file:
        _refuse_utf16(file)
        records = _CsvRecords(file)
        for offset, _ in records:
            if rows % stride == 0:
                offsets.append(offset)
            rows += 1
    types = {name: pa.string() for name in typed}
    return TableScan(rows=rows, columns=tuple(records.header), types=types, offsets=tuple(offsets))


def read_csv(path: str, start: int, stop: int, offset: int) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a .csv file; row `start` begins at byte `offset`."""
    with _opened(path) as file:
        records = _CsvRecords(file, offset)
        for row, (_, fields) in zip(range(start, stop), records, strict=False):
            if len(fields) != len(records.header):
                yield malformed(row, f"it has {len(fields)} fields, the header has {len(records.header)}")
            else:
                yield TableRow(row, dict(zip(records.header, fields, strict=True)))


class _CsvRecords:
    """The records of a .csv file, each with the byte where it begins, from a byte on."""

    def __init__(self, file: BinaryIO, offset: int | None = None) -> None:
        csv.field_size_limit(_MAX_CSV_FIELD_BYTES)
        self._file = file
        self._position = 0
        self._is_at_end = False
        self._reader = csv.reader(self._decoded())
        try:
            self.header: list[str] = next(self._reader, [])
            if offset is not None:
                self._position = offset
                file.seek(offset)
        except csv.Error as error:
            raise OSError(f"it is not a CSV file: {error}") from error

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        while True:
            begin = self._position
            try:
                fields = next(self._reader, None)
            except csv.Error as error:
                raise OSError(f"its record at byte {begin} is not CSV: {error}") from error
            if fields is None:
                return
            if self._is_at_end:  # the file ended before the record: rows may lie in its open quote
                raise OSError(f"its record at byte {begin} opens a quote that is never closed")
            if fields:
                yield begin, fields

    def _decoded(self) -> Iterator[str]:
        while line := self._file.readline():
            text = line.removeprefix(codecs.BOM_UTF8) if self._position == 0 else line
            self._position += len(line)
            # Bytes that are not UTF-8 become lone surrogates, which the row is refused for later.
            yield text.decode("utf-8", errors="surrogateescape")
        self._is_at_end = True


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The bytes of a table's lines, unpacked where they are a .gz file."""
    with open_input(path) as file:
        if not without_query(path).lower().endswith(".gz"):
            yield file
            return
        try:
            with gzip.open(file) as unpacked:
                yield cast(BinaryIO, unpacked)
        except (EOFError, zlib.error) as error:
            raise OSError("its gzip data are damaged or cut off") from error


def _refuse_utf16(file: BinaryIO) -> None:
    if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise OSError("it is UTF-16: save it as UTF-8")
    file.seek(0)


def _lines(file: BinaryIO, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Lines from a byte on, each with the byte where it begins; a byte order mark is left out."""
    file.seek(offset)
    while line := file.readline():
        yield offset, line.removeprefix(codecs.BOM_UTF8) if offset == 0 else line
        offset += len(line)


def _filled_lines(file: BinaryIO, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    return ((begin, line) for begin, line in _lines(file, offset) if not line.isspace() and line)


def _refuse_array(line: bytes) -> None:
    if line.lstrip().startswith(b"["):
        raise OSError("it is one JSON array: save it with one object a line")


def _parse(row: int, line: bytes) -> TableRow:
    try:
        values = json.loads(line)
    except UnicodeDecodeError as error:
        return malformed(row, f"it is not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        return malformed(row, f"it is not JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        return malformed(row, "its JSON is nested too deeply")
    except ValueError:
        return malformed(row, "it is not JSON")
    if not isinstance(values, dict):
        return malformed(row, f"it is a JSON {type(values).__name__}, not an object")
    return TableRow(row, values)


def json_type(value: Any) -> pa.DataType:
    """The Arrow type that a JSON value is kept with; what is no figure is kept as text."""
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int() if -(2**63) <= value < 2**63:
            return pa.int64()
        case float():
            return pa.float64()
        case _:
            return pa.string()
