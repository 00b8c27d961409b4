"""Arrow files, tars, packed lines, manifests and datasets are tables like the others."""

import functools
import gzip
import http.server
import io
import json
import tarfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from headrace.audio import AudioError
from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.dataset_tables import dataset_file, list_dataset, list_dataset_files
from headrace.pipelines.errors import InputError
from headrace.pipelines.scans import TableRow
from headrace.pipelines.segments import cut_segment
from headrace.pipelines.tables import read_rows, scan_table
from headrace.pipelines.transcribe import TranscribeWork


def read_in_chunks(path: str, stride: int, columns: list[str]) -> list[TableRow]:
    scan = scan_table(path, stride=stride, typed=())
    rows: list[TableRow] = []
    for chunk, start in enumerate(range(0, scan.rows, stride)):
        offset = scan.offsets[chunk] if scan.offsets else 0
        stop = min(start + stride, scan.rows)
        rows += read_rows(path, start, stop, offset=offset, columns=columns)
    return rows


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("stride", [1, 3, 100])
def test_arrow_files_and_streams_are_read_in_chunks(tmp_path: Path, kind: str, stride: int):
    table = pa.table({"n": range(10), "prompt": [f"p{n}" for n in range(10)]})
    path = tmp_path / "table.arrow"
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    rows = read_in_chunks(str(path), stride, ["prompt"])
    assert [(row.row, dict(row.values)) for row in rows] == [(n, {"prompt": f"p{n}"}) for n in range(10)]
    assert scan_table(str(path), stride=1, typed=("n",)).types == {"n": pa.int64()}


def test_an_arrow_file_that_is_none_is_named(tmp_path: Path):
    (tmp_path / "table.arrow").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"table\.arrow"):
        scan_table(str(tmp_path / "table.arrow"), stride=1, typed=())


@pytest.mark.parametrize("stride", [1, 2, 100])
def test_packed_lines_are_read_in_chunks_and_damage_is_named(tmp_path: Path, stride: int):
    path = tmp_path / "table.jsonl.gz"
    content = gzip.compress(b"".join(b'{"prompt": "p%d"}\n' % n for n in range(5)))
    path.write_bytes(content)
    rows = read_in_chunks(str(path), stride, ["prompt"])
    assert [row.values["prompt"] for row in rows] == [f"p{n}" for n in range(5)]
    path.write_bytes(content[:-12])
    with pytest.raises(InputError, match="gzip data are damaged or cut off"):
        scan_table(str(path), stride=1, typed=())


def test_one_json_array_is_refused_with_what_to_do(tmp_path: Path):
    (tmp_path / "table.json").write_text('[{"prompt": "a"}]')
    with pytest.raises(InputError, match="one object a line"):
        scan_table(str(tmp_path / "table.json"), stride=1, typed=())


def write_tar(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return str(path)


@pytest.mark.parametrize("stride", [1, 2, 100])
def test_files_of_one_name_in_a_tar_are_one_row(tmp_path: Path, stride: int):
    files: dict[str, bytes] = {}
    for n in range(3):
        files |= {f"a/{n}.wav": b"RIFF%d" % n, f"a/{n}.txt": b"said %d" % n}
        files |= {f"a/{n}.json": json.dumps({"id": f"x{n}", "seconds": n}).encode()}
    path = write_tar(tmp_path / "shard.tar", files)
    scan = scan_table(path, stride=stride, typed=("seconds",))
    assert (scan.rows, scan.types) == (3, {"seconds": pa.int64()})
    assert set(scan.columns) == {"__key__", "audio", "txt", "json", "id", "seconds"}
    rows = read_in_chunks(path, stride, ["audio", "txt", "id"])
    assert [row.values["__key__"] for row in rows] == ["a/0", "a/1", "a/2"]
    assert [row.values["audio"] for row in rows] == [
        {"bytes": b"RIFF%d" % n, "path": f"a/{n}.wav"} for n in range(3)
    ]
    assert [(row.values["txt"], row.values["id"]) for row in rows] == [
        (f"said {n}", f"x{n}") for n in range(3)
    ]


def test_a_tar_that_is_none_is_named(tmp_path: Path):
    (tmp_path / "shard.tar").write_bytes(b"something else" * 100)
    with pytest.raises(InputError, match=r"shard\.tar"):
        scan_table(str(tmp_path / "shard.tar"), stride=1, typed=())


def test_a_bad_json_file_in_a_tar_is_one_row_with_an_error(tmp_path: Path):
    path = write_tar(tmp_path / "shard.tar", {"0.json": b'{"prompt": "a"}', "1.json": b"no", "2.txt": b"c"})
    rows = read_in_chunks(path, 100, ["prompt"])
    assert [row.error is None for row in rows] == [True, False, True]


def write_ramp(path: Path) -> str:
    """Two seconds at 8 kHz, each sample telling where it is."""
    soundfile.write(path, np.arange(16_000, dtype=np.float32) / 32_768, 8_000, subtype="PCM_16")
    return str(path)


def test_offset_and_duration_choose_a_stretch(tmp_path: Path):
    path = write_ramp(tmp_path / "a.wav")
    cut = cut_segment(path, (0.5, 0.25))
    assert (cut["sampling_rate"], len(cut["array"])) == (8_000, 2_000)
    assert cut["array"][0] == np.float32(4_000 / 32_768)
    assert len(cut_segment(path, (1.5, None))["array"]) == 4_000
    decoded = cut_segment(Path(path).read_bytes(), (0.5, 0.25))
    assert (decoded["sampling_rate"], len(decoded["array"])) == (16_000, 4_000)
    for offset, duration in ((5.0, 1.0), (-1.0, 1.0), (0.0, 0.0)):
        with pytest.raises(AudioError) as caught:
            cut_segment(path, (offset, duration))
        assert caught.value.kind == "segment"


def test_rows_of_a_manifest_become_stretches_of_their_recordings(tmp_path: Path):
    write_ramp(tmp_path / "a.wav")
    lines: list[dict[str, Any]] = [
        {"audio_filepath": "a.wav", "offset": 0.5, "duration": 0.5},
        {"audio_filepath": "a.wav", "offset": None, "duration": 2.0},
        {"audio_filepath": "a.wav", "offset": "half", "duration": 2.0},
    ]
    manifest = tmp_path / "manifest.json"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    work = TranscribeWork(config=TranscribeConfig(inputs=(str(manifest),), output="o", model="m"))
    scan = scan_table(str(manifest), stride=10, typed=())
    content = work.content_columns("manifest.json", scan.columns)
    assert content == ("audio_filepath", "offset", "duration")
    rows = [
        work.prepare(row, str(manifest), "manifest.json", content)
        for row in read_in_chunks(str(manifest), 10, list(content))
    ]
    assert len(rows[0].payload["array"]) == 4_000
    assert rows[0].payload_bytes == 16_000
    assert rows[1].payload == str(tmp_path / "a.wav")
    assert rows[2].error is not None
    assert "seconds are wanted" in rows[2].error.message


@pytest.mark.parametrize("layout", ["folder", "save_to_disk", "dict"])
def test_datasets_are_tables_whose_audio_stays_encoded(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "set"
    if layout == "folder":
        directory.mkdir()
        (directory / "train.jsonl").write_text(
            "".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(7))
        )
    else:
        content = {"prompt": [f"p{n}" for n in range(7)], "audio": [{"bytes": b"x", "path": None}] * 7}
        found: Any = datasets.Dataset.from_dict(content).cast_column("audio", datasets.Audio(decode=False))
        found = found.cast_column("audio", datasets.Audio())
        (datasets.DatasetDict({"train": found}) if layout == "dict" else found).save_to_disk(str(directory))
    config = GenerateConfig(dataset=str(directory), output="o", model="m")
    file = list_dataset(config)
    assert (file.source, file.size) == ("set/train", 7)
    columns = ["prompt"] if layout == "folder" else ["prompt", "audio"]
    rows = read_in_chunks(file.path, 3, columns)
    assert [row.values["prompt"] for row in rows] == [f"p{n}" for n in range(7)]
    assert layout == "folder" or rows[3].values["audio"] == {"bytes": b"x", "path": None}


def test_files_of_a_dataset_are_read_where_they_lie(tmp_path: Path):
    directory = tmp_path / "set"
    (directory / "data").mkdir(parents=True)
    for number in range(2):
        table = pa.table({"prompt": [f"{number}-{n}" for n in range(3)]})
        pq.write_table(table, directory / "data" / f"train-{number:05d}-of-00002.parquet")
    config = GenerateConfig(dataset=str(directory), stream_dataset=True, output="o", model="m")
    files = list_dataset_files(config)
    assert [file.source for file in files] == [
        f"set/data/train-{number:05d}-of-00002.parquet" for number in range(2)
    ]
    rows = [row.values["prompt"] for file in files for row in read_in_chunks(file.path, 2, ["prompt"])]
    assert rows == [f"{number}-{n}" for number in range(2) for n in range(3)]
    of_hub = dataset_file("hf://datasets/user/name@c0ffee/data/a b.parquet", "user/name")
    assert of_hub.path.endswith("/datasets/user/name/resolve/c0ffee/data/a%20b.parquet")
    assert of_hub.source == "user/name/data/a b.parquet"
    with pytest.raises(InputError, match=r"no files of a split 'test': train"):
        list_dataset_files(replace(config, split="test"))
    with pytest.raises(InputError, match="stream_dataset wants a dataset"):
        GenerateConfig(inputs=("a",), stream_dataset=True, output="o", model="m")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a directory without a word."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the log is stderr."""


def test_tables_are_read_from_addresses(tmp_path: Path):
    pq.write_table(pa.table({"prompt": [f"p{n}" for n in range(5)]}), tmp_path / "table.parquet")
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(5)))
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for name in ("table.parquet?X-Signature=canary", "lines.jsonl"):
            rows = read_in_chunks(f"{address}/{name}", 2, ["prompt"])
            assert [row.values["prompt"] for row in rows] == [f"p{n}" for n in range(5)]
        with pytest.raises(InputError, match="404") as caught:
            scan_table(f"{address}/none.jsonl?X-Signature=canary", stride=1, typed=())
        assert "canary" not in str(caught.value)
        server.shutdown()


def test_a_dataset_that_is_not_there_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="cannot load the dataset") as caught:
        list_dataset(GenerateConfig(dataset=str(tmp_path / "empty"), output="o", model="m"))
    assert "\n" not in str(caught.value)
