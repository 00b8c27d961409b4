"""Mapped safetensors files."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.engines.checkpoints.safetensors_file import SafetensorsFile
from headrace.engines.errors import ModelError


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)}, path)
    return path


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_tensors_are_what_the_package_wrote(stored: Path):
    file = SafetensorsFile(stored)
    assert sorted(file.names()) == ["a", "b"]
    np.testing.assert_array_equal(file.read("a"), np.arange(6, dtype=np.float32).reshape(2, 3))
    assert file.read("b").dtype == np.float16


def test_views_stay_what_they_are_when_a_file_is_unloaded(stored: Path):
    file = SafetensorsFile(stored)
    view = file.read("a")
    file.unload()
    np.testing.assert_array_equal(view, np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(file.read("b"), np.ones(3, np.float16))


def test_bfloat16_is_read(tmp_path: Path):
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    header = {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}, "__metadata__": {"format": "pt"}}
    read = SafetensorsFile(write_raw(tmp_path / "x", header, values.tobytes())).read("a")
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("kept", [0, 4, 8, 40, -1])
def test_cut_file_is_one_line_with_its_name(stored: Path, kept: int):
    stored.write_bytes(stored.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors' is (cut short|empty).*fetch it again"):
        SafetensorsFile(stored)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        ["a"],
        {"a": 1},
        {"a": {"dtype": "F32", "shape": [1]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}},
    ],
)
def test_damaged_header_is_one_line(tmp_path: Path, header: object):
    with pytest.raises(ModelError, match="damaged or another kind of file"):
        SafetensorsFile(write_raw(tmp_path / "x", header, b"\0" * 8))


def test_another_kind_of_file_is_one_line(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"<!DOCTYPE html><html>")
    with pytest.raises(ModelError, match="header would have"):
        SafetensorsFile(tmp_path / "x")


@pytest.mark.parametrize("facts", [{"dtype": "F32", "shape": [3]}, {"dtype": "F4", "shape": [4]}])
def test_tensor_that_does_not_fit_its_bytes_is_refused(tmp_path: Path, facts: dict):
    file = SafetensorsFile(write_raw(tmp_path / "x", {"a": facts | {"data_offsets": [0, 8]}}, b"\0" * 8))
    with pytest.raises(ModelError, match="'a'"):
        file.read("a")
