"""Inputs are listed once each, under names that stay when the data moves or grows."""

import os
from pathlib import Path

import pytest

from headrace.pipelines.errors import InputError
from headrace.pipelines.listing import list_inputs


def make_files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))


def sources(*inputs: str | Path, leave_out: str = "/nowhere", root: str | None = None) -> list[str]:
    listing = list_inputs([str(each) for each in inputs], leave_out=leave_out, root=root)
    return [file.source for file in listing.files]


def test_a_glob_lists_each_file_once_sorted_with_its_size(tmp_path: Path):
    make_files(tmp_path, "b.wav", "a.wav", "sub/c.wav", "note.txt")
    listing = list_inputs([f"{tmp_path}/*.wav", f"{tmp_path}/a.wav"], leave_out="/nowhere")
    assert [(file.source, file.size) for file in listing.files] == [("a.wav", 5), ("b.wav", 5)]
    assert sources(f"{tmp_path}/**.wav") == ["a.wav", "b.wav", "sub/c.wav"]


def test_a_directory_lists_what_is_below_it_without_hidden_files(tmp_path: Path):
    make_files(tmp_path, "a.wav", "sub/b.wav", ".hidden", ".git/c.wav", "__run/run.json")
    assert sources(tmp_path) == ["a.wav", "sub/b.wav"]


def test_a_directory_whose_name_looks_like_a_glob_is_that_directory_alone(tmp_path: Path):
    make_files(tmp_path, "a[1]/x.wav", "s*r/x.wav", "star/y.wav")
    assert sources(tmp_path / "a[1]") == ["x.wav"]
    assert sources(tmp_path / "s*r") == ["x.wav"]


def test_the_output_is_not_an_input(tmp_path: Path):
    make_files(tmp_path, "a.jsonl", "out/part-0.parquet")
    assert sources(tmp_path, leave_out=str(tmp_path / "out")) == ["a.jsonl"]


def test_moving_the_data_changes_no_source(tmp_path: Path):
    for place in ("here", "there/deep"):
        make_files(tmp_path / place, "x/a.wav", "y/b.wav")
    assert (
        sources(f"{tmp_path}/here/*/*.wav")
        == sources(f"{tmp_path}/there/deep/*/*.wav")
        == ["x/a.wav", "y/b.wav"]
    )


def test_files_that_come_later_do_not_rename_those_before(tmp_path: Path):
    make_files(tmp_path, "en/a.wav")
    assert sources(f"{tmp_path}/*/*.wav") == ["en/a.wav"]
    first = list_inputs([f"{tmp_path}/en/a.wav"], leave_out="/nowhere")
    make_files(tmp_path, "de/b.wav")
    both = [f"{tmp_path}/en/a.wav", f"{tmp_path}/de/b.wav"]
    assert sources(*both) == ["de/b.wav", "en/a.wav"]
    assert sources(*both, root=first.root) == ["../de/b.wav", "a.wav"]


def test_a_name_with_brackets_is_a_file_not_a_glob(tmp_path: Path):
    make_files(tmp_path, "a[1].wav", "a1.wav")
    assert sources(tmp_path / "a[1].wav") == ["a[1].wav"]


def test_a_name_that_is_not_utf8_gets_a_source_that_is(tmp_path: Path):
    with open(os.fsencode(tmp_path) + b"/\xe9t\xe9.wav", "wb"):
        pass
    assert sources(f"{tmp_path}/*.wav") == ["\\xe9t\\xe9.wav"]


def test_an_input_that_matches_nothing_is_named(tmp_path: Path):
    make_files(tmp_path, "a.wav")
    with pytest.raises(InputError, match=r"no input file matches .*\*\.flac"):
        sources(f"{tmp_path}/*.wav", f"{tmp_path}/*.flac")
    with pytest.raises(InputError, match="no input file"):
        sources(tmp_path / "absent.wav")


def test_a_signed_address_leaves_its_signature_out_of_its_source():
    listing = list_inputs(["https://host/dir/a.wav?X-Sig=secret"], leave_out="/nowhere")
    (file,) = listing.files
    assert (file.source, file.size, listing.root) == ("a.wav", None, "https://host/dir")
    assert file.path.endswith("secret")
    with pytest.raises(InputError, match="same address") as caught:
        list_inputs(["https://host/a.wav?one", "https://host/a.wav?two"], leave_out="/nowhere")
    assert "one" not in str(caught.value)
