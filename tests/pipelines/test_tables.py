"""Tables are counted, described and read in pieces that together are the whole."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipelines.errors import InputError
from headrace.pipelines.scans import TableRow
from headrace.pipelines.tables import read_rows, scan_table, table_format

PROMPTS = [
    "plain",
    'with "quotes", commas and\na new line',
    "emoji 🎏 and 漢字",
    "",
    " spaces ",
    "last",
    "one more",
]


def write_table(path: Path, prompts: list[str]) -> Path:
    match path.suffix:
        case ".parquet":
            columns = {"n": range(len(prompts)), "prompt": prompts, "audio": [b"x" * 100] * len(prompts)}
            pq.write_table(pa.table(columns), path, row_group_size=3)
        case ".jsonl":
            path.write_text("".join(json.dumps({"n": n, "prompt": p}) + "\n" for n, p in enumerate(prompts)))
        case ".csv":
            import csv

            with path.open("w", newline="") as file:
                csv.writer(file).writerows([("n", "prompt"), *enumerate(prompts)])
        case ".txt":
            path.write_text("".join(p.replace("\n", " ") + "\n" for p in prompts))
    return path


def read_in_chunks(path: Path, stride: int) -> list[TableRow]:
    scan = scan_table(str(path), stride=stride, typed=())
    rows: list[TableRow] = []
    for chunk, start in enumerate(range(0, scan.rows, stride)):
        offset = scan.offsets[chunk] if scan.offsets else 0
        stop = min(start + stride, scan.rows)
        rows += read_rows(str(path), start, stop, offset=offset, columns=["prompt"])
    return rows


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "txt"])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 100])
def test_chunks_of_a_table_are_the_whole_table(tmp_path: Path, ending: str, stride: int):
    path = write_table(tmp_path / f"table.{ending}", PROMPTS)
    rows = read_in_chunks(path, stride)
    wanted = [p.replace("\n", " ") for p in PROMPTS] if ending == "txt" else PROMPTS
    assert [row.row for row in rows] == list(range(len(PROMPTS)))
    assert [row.values["prompt"] for row in rows] == wanted
    assert all(row.error is None for row in rows)


def test_parquet_reads_only_the_columns_that_are_asked_for(tmp_path: Path):
    path = write_table(tmp_path / "table.parquet", PROMPTS)
    (row,) = read_rows(str(path), 2, 3, offset=0, columns=["prompt"])
    assert dict(row.values) == {"prompt": PROMPTS[2]}


def test_a_malformed_jsonl_line_is_one_row_with_an_error(tmp_path: Path):
    path = tmp_path / "table.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n\n{"prompt": secret}\n[1]\n\xff\xfe\n{"prompt": "b"}')
    rows = read_in_chunks(path, 2)
    assert [row.error.kind if row.error else None for row in rows] == [
        None,
        "malformed",
        "malformed",
        "malformed",
        None,
    ]
    assert rows[-1].values == {"prompt": "b"}
    assert not any("secret" in row.error.message for row in rows if row.error)


def test_a_csv_record_of_the_wrong_length_is_one_row_with_an_error(tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_text("\ufeffid,prompt\n1,a\n2\n\n3,c\n", encoding="utf-8")
    assert scan_table(str(path), stride=2, typed=()).columns == ("id", "prompt")
    rows = read_in_chunks(path, 2)
    assert [row.error is None for row in rows] == [True, False, True]
    assert rows[2].values == {"id": "3", "prompt": "c"}


def test_a_long_csv_field_is_read(tmp_path: Path):
    path = write_table(tmp_path / "table.csv", ["x" * 300_000])
    assert len(read_in_chunks(path, 1)[0].values["prompt"]) == 300_000


def test_every_line_of_a_text_file_is_a_row(tmp_path: Path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\nthree")
    assert [row.values for row in read_in_chunks(path, 2)] == [
        {"prompt": "one"},
        {"prompt": ""},
        {"prompt": "three"},
    ]


def test_types_of_kept_columns_are_those_of_the_whole_table(tmp_path: Path):
    path = tmp_path / "table.jsonl"
    lines = [
        {"i": 1, "x": 1, "mixed": 1, "none": None},
        {"i": 2, "x": 0.5, "mixed": "b", "b": True},
        {"i": None},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    scan = scan_table(str(path), stride=10, typed=("i", "x", "mixed", "none", "b"))
    assert scan.types == {
        "i": pa.int64(),
        "x": pa.float64(),
        "mixed": pa.string(),
        "none": pa.null(),
        "b": pa.bool_(),
    }
    table = write_table(tmp_path / "table.parquet", PROMPTS)
    assert scan_table(str(table), stride=10, typed=("n", "audio")).types == {
        "n": pa.int64(),
        "audio": pa.binary(),
    }


@pytest.mark.parametrize("name", ["broken.parquet", "absent.jsonl", "absent.parquet"])
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, name: str):
    (tmp_path / "broken.parquet").write_bytes(b"not a parquet file")
    with pytest.raises(InputError, match=name):
        scan_table(str(tmp_path / name), stride=10, typed=())


def test_a_damaged_row_group_is_rows_with_errors_and_the_other_groups_are_read(tmp_path: Path):
    path = tmp_path / "table.parquet"
    values = [f"{number * 7919 % 10_007}" * 5 for number in range(300)]
    pq.write_table(pa.table({"prompt": values}), path, row_group_size=100, use_dictionary=False)
    column = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    begin = column.data_page_offset + 60
    content[begin : begin + 200] = b"\xff" * 200
    path.write_bytes(content)
    rows = read_in_chunks(path, 120)
    assert [row.row for row in rows] == list(range(300))
    assert [row.values["prompt"] for row in rows if row.error is None] == values[:100] + values[200:]
    assert {row.error.kind for row in rows[100:200] if row.error} == {"malformed"}


def test_a_date_that_python_cannot_hold_costs_only_its_row(tmp_path: Path):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"prompt": pa.array([0, 2**30, 1], pa.date32())}), path)
    assert [row.error is None for row in read_in_chunks(path, 10)] == [True, False, True]


def test_an_open_quote_is_refused_since_it_hides_the_rows_behind_it(tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_text('id,prompt\n1,a\n2,"b\n3,c\n4,d\n')
    with pytest.raises(InputError, match="record at byte 14 opens a quote that is never closed"):
        scan_table(str(path), stride=10, typed=())
    path.write_text('id,prompt\n1,5" pipe\n2,"b\nb"')
    assert scan_table(str(path), stride=10, typed=()).rows == 2


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl"])
def test_utf_16_is_refused_by_name(tmp_path: Path, ending: str):
    path = tmp_path / f"table.{ending}"
    path.write_text("prompt\nhello\n", encoding="utf-16")
    with pytest.raises(InputError, match="UTF-16"):
        scan_table(str(path), stride=10, typed=())


def test_lists_of_a_fixed_size_are_kept_as_lists_since_a_null_among_them_cannot_be_read(tmp_path: Path):
    path = tmp_path / "table.parquet"
    pair = pa.list_(pa.int64(), 2)
    pq.write_table(pa.table({"v": pa.array([{"a": [1, 2]}], pa.struct([("a", pair)]))}), path)
    types = scan_table(str(path), stride=10, typed=("v",)).types
    assert types == {"v": pa.struct([("a", pa.list_(pa.field("element", pa.int64())))])}


def test_a_table_is_known_by_its_ending():
    endings = ("a.PARQUET", "s3://b/a.jsonl", "a.csv", "a.txt", "a.wav", "a.jsonl.gz", "a.gz")
    wanted = ["parquet", "jsonl", "csv", "txt", None, "jsonl.gz", None]
    assert [table_format(each) for each in endings] == wanted
