"""A part is there whole or not at all, and says in its footer what it is."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipelines.commit import Footer, is_part_of, read_footer, scratch_directory, write_part
from headrace.pipelines.schemas import generate_schema
from headrace.pipelines.shards import Chunk, ShardFile

CHUNK = Chunk(
    shard=3,
    index=7,
    start=20,
    stop=22,
    files=(ShardFile(source="a.txt", size=9),),
    is_table=True,
    fingerprint="f" * 16,
)
ROWS = [
    {"id": "a", "source": "a.txt", "row": 20, "finish_reason": "stop", "quality_flags": [], "text": "hé"},
    {"id": "b", "source": "a.txt", "row": 21, "finish_reason": "error", "quality_flags": [], "error": "why"},
]


def make_footer() -> Footer:
    return Footer(
        part=CHUNK.part_name,
        job="generate",
        fingerprint=CHUNK.fingerprint,
        shard=3,
        chunk=7,
        start=20,
        stop=22,
        rows=2,
        rows_failed=1,
        errors={"kind": 1},
        units=5.0,
        finished_at=1.0,
        wall_s=2.0,
    )


def test_a_part_is_written_with_its_footer_and_nothing_is_left_over(tmp_path: Path):
    write_part(str(tmp_path), ROWS, generate_schema(), make_footer())
    assert CHUNK.part_name == "part-00003-00007-ffffffffffffffff.parquet"
    footer = read_footer(str(tmp_path), CHUNK.part_name)
    assert footer == make_footer()
    assert is_part_of(footer, CHUNK)
    table = pq.read_table(tmp_path / CHUNK.part_name)
    assert table.schema.equals(generate_schema())
    assert table["text"].to_pylist() == ["hé", None]
    assert list(Path(scratch_directory(str(tmp_path))).iterdir()) == []


def test_a_directory_whose_name_is_not_utf_8_holds_parts_like_another(tmp_path: Path):
    output = f"{tmp_path}/\udce9"  # the one byte e9, as Python reads it from the file system
    write_part(output, ROWS, generate_schema(), make_footer())
    assert read_footer(output, CHUNK.part_name) == make_footer()


def test_a_part_of_other_rows_or_another_fingerprint_is_not_the_chunks(tmp_path: Path):
    footer = make_footer()
    assert not is_part_of(None, CHUNK)
    for other in (replace(footer, fingerprint="0"), replace(footer, stop=23), replace(footer, rows=1)):
        assert not is_part_of(other, CHUNK)


def test_a_file_that_is_not_a_whole_part_has_no_footer(tmp_path: Path):
    write_part(str(tmp_path), ROWS, generate_schema(), make_footer())
    path = tmp_path / CHUNK.part_name
    content = path.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"PAR1", content[:-9]):
        path.write_bytes(broken)
        assert read_footer(str(tmp_path), CHUNK.part_name) is None
    pq.write_table(pa.table({"a": [1, 2]}), path)
    assert read_footer(str(tmp_path), CHUNK.part_name) is None
    assert read_footer(str(tmp_path), "absent.parquet") is None


def test_a_part_that_cannot_be_put_in_place_raises_and_leaves_nothing(tmp_path: Path):
    (tmp_path / CHUNK.part_name).mkdir()
    with pytest.raises(OSError):
        write_part(str(tmp_path), ROWS, generate_schema(), make_footer())
    assert list(Path(scratch_directory(str(tmp_path))).iterdir()) == []
