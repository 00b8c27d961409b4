"""A run whose input and output lie on a file system that only Beam knows, one without directories."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem

from headrace.pipelines import GenerateConfig, OutputError, files, run_generate


class NearFileSystem(FileSystem):
    """`near://bucket/name` is the file bucket/name below `root`; as in an object store, names are flat."""

    root: ClassVar[Path]

    @classmethod
    def scheme(cls) -> str:
        return "near"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path: str) -> None:
        pass

    def has_dirs(self) -> bool:
        return False

    def _place(self, path: str) -> Path:
        return self.root / path.removeprefix("near://")

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for place in sorted(self.root.rglob("*")):
            path = f"near://{place.relative_to(self.root)}"
            if place.is_file() and path.startswith(dir_or_prefix):
                yield self.metadata(path)

    def create(
        self,
        path: str,
        mime_type: str = "application/octet-stream",
        compression_type: str = CompressionTypes.AUTO,
    ) -> BinaryIO:
        self._place(path).parent.mkdir(parents=True, exist_ok=True)
        return self._place(path).open("wb")

    def open(
        self,
        path: str,
        mime_type: str = "application/octet-stream",
        compression_type: str = CompressionTypes.AUTO,
    ) -> BinaryIO:
        return self._place(path).open("rb")

    def copy(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            shutil.copy(self._place(source), self._place(destination))

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            if self._place(destination).exists():
                raise BeamIOError(f"there is a file: {destination}")
            os.rename(self._place(source), self._place(destination))

    def exists(self, path: str) -> bool:
        return self._place(path).is_file()

    def size(self, path: str) -> int:
        return self._place(path).stat().st_size

    def last_updated(self, path: str) -> float:
        return self._place(path).stat().st_mtime

    def checksum(self, path: str) -> str:
        return str(self.size(path))

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            self._place(path).unlink()


@pytest.fixture
def near(tmp_path: Path) -> Path:
    """The directory behind near://."""
    NearFileSystem.root = tmp_path / "near"
    NearFileSystem.root.mkdir()
    return NearFileSystem.root


def make_config(model: str, **options: Any) -> GenerateConfig:
    common = {
        "max_tokens": 6,
        "max_num_seqs": 8,
        "max_model_len": 128,
        "dtype": "float32",
        "rows_per_part": 3,
        "deterministic": True,
        "ignore_eos": True,
    }
    places = {
        "inputs": ("near://in/**.jsonl", "near://in/*.parquet"),
        "output": "near://out/run",
        "model": model,
    }
    return GenerateConfig.of(**{**common, **places, **options})


def test_a_run_reads_writes_and_resumes_there(near: Path, tiny_llm: str, make_prompts: Callable[[int], Path]):
    (near / "in" / "deep").mkdir(parents=True)
    shutil.copy(make_prompts(7), near / "in" / "deep")
    pq.write_table(pa.table({"prompt": ["a", "b"]}), near / "in" / "b.parquet")
    config = make_config(tiny_llm)
    assert run_generate(config).rows == 9
    output = near / "out" / "run"
    table = ds.dataset(output).to_table()
    assert sorted(set(table["source"].to_pylist())) == ["b.parquet", "deep/prompts.jsonl"]
    assert table.num_rows == 9
    assert (output / "__run" / "_SUCCESS").exists()
    assert json.loads((output / "__run" / "run.json").read_text())["root"] == "near://in"
    next(output.glob("part-00001-00001-*")).unlink()
    summary = run_generate(config)
    assert (summary.rows, summary.rows_run, summary.parts_reused) == (9, 3, 3)
    with pytest.raises(OutputError, match="max_tokens"):
        run_generate(make_config(tiny_llm, max_tokens=7))
    (near / "other").mkdir()
    (near / "other" / "file").write_text("mine")
    with pytest.raises(OutputError, match="near://other holds file"):
        run_generate(make_config(tiny_llm, output="near://other"))


def test_a_file_is_replaced_whole(near: Path):
    for content in (b"one", b"two"):
        files.write_whole("near://b/name", content, scratch="near://b/tmp")
        assert files.read_bytes("near://b/name") == content
    assert files.list_directory("near://b", "na") == ["name"]
    assert [path.name for path in near.rglob("*") if path.is_file()] == ["name"]
    files.delete("near://b/name")
    files.delete("near://b/name")
    assert not files.exists("near://b/name")
