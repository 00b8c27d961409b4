"""Models on other file systems: memory:// stands for a bucket."""

import hashlib
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from headrace.engines.checkpoints import resolve_model
from headrace.engines.errors import ModelError


class HashingFileSystem(MemoryFileSystem):
    """A bucket that lists an MD5 for each file, as S3 does; wrong for files named in `lies`."""

    protocol = "hashing"
    store = {}  # noqa: RUF012 - the base class keeps its files in the class
    pseudo_dirs = [""]  # noqa: RUF012
    lies = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("hashing://", "memory://"))

    def info(self, path, **kwargs):
        return self._with_hash(super().info(path, **kwargs))

    def ls(self, path, detail=True, **kwargs):
        return [self._with_hash(facts) for facts in super().ls(path, detail=True, **kwargs)]

    def _with_hash(self, facts):
        if facts["type"] != "file":
            return facts
        content = b"something else" if self.lies else self.cat_file(facts["name"])
        return facts | {"ETag": f'"{hashlib.md5(content).hexdigest()}"'}


fsspec.register_implementation("hashing", HashingFileSystem)


@pytest.fixture
def bucket():
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({"/models/tiny/config.json": b"{}", "/models/tiny/model.safetensors": b"weights"})
    memory.pipe({"/models/tiny/pytorch_model.bin": b"pickle", "/models/tiny/original/x.json": b"{}"})
    memory.pipe("/models/one.gguf", b"GGUF and more")
    yield memory
    memory.store.clear()


def test_directory_is_copied_without_what_a_model_does_not_need(bucket):
    model = resolve_model("memory://models/tiny")
    assert sorted(path.name for path in model.path.iterdir()) == ["config.json", "model.safetensors"]
    assert (model.format, model.revision) == ("huggingface", None)


def test_single_gguf_file_is_copied(bucket):
    model = resolve_model("memory://models/one.gguf")
    assert model.path.read_bytes() == b"GGUF and more"
    assert model.format == "gguf"


def test_model_is_copied_once_until_it_changes(bucket):
    first = resolve_model("memory://models/tiny")
    changed = (first.path / "config.json").stat().st_mtime_ns
    assert resolve_model("memory://models/tiny") == first
    assert (first.path / "config.json").stat().st_mtime_ns == changed
    bucket.pipe("/models/tiny/config.json", b'{"a": 1}')
    second = resolve_model("memory://models/tiny")
    assert (second.path / "config.json").read_bytes() == b'{"a": 1}'
    assert second.fingerprint != first.fingerprint


def test_listed_md5_is_compared(monkeypatch: pytest.MonkeyPatch):
    files = fsspec.filesystem("hashing")
    files.pipe("/m/model.gguf", b"GGUF")
    assert resolve_model("hashing://m/model.gguf").format == "gguf"
    monkeypatch.setattr(HashingFileSystem, "lies", True)
    with pytest.raises(ModelError, match=r"'model.gguf'.*came with MD5"):
        resolve_model("hashing://m/model.gguf")


def test_absent_path_is_named(bucket):
    with pytest.raises(ModelError, match="no model at 'memory://models/nothing'"):
        resolve_model("memory://models/nothing")


def test_directory_without_a_model_is_named(bucket):
    bucket.pipe("/models/empty/readme.md", b"")
    with pytest.raises(ModelError, match="no model at 'memory://models/empty'"):
        resolve_model("memory://models/empty")


def test_unknown_protocol_is_named():
    with pytest.raises(ModelError, match="unknown protocol nosuch://"):
        resolve_model("nosuch://bucket/model")


@pytest.mark.parametrize(("protocol", "module", "extra"), [("gs", "gcsfs", "gcp"), ("s3", "s3fs", "aws")])
def test_missing_package_names_the_extra(protocol: str, module: str, extra: str):
    try:
        __import__(module)
    except ImportError:
        with pytest.raises(ModelError, match=rf"{protocol}://.*headrace\[{extra}\]"):
            resolve_model(f"{protocol}://bucket/model")
    else:
        pytest.skip(f"{module} is installed")


def test_credentials_of_a_url_are_not_shown():
    with pytest.raises(ModelError) as caught:
        resolve_model("memory://user:secret@models/nothing?signature=secret")
    assert "secret" not in str(caught.value)


def test_file_url_is_used_in_place(tmp_path: Path):
    (tmp_path / "a b.gguf").write_bytes(b"GGUF")
    model = resolve_model((tmp_path / "a b.gguf").as_uri())
    assert model.path == tmp_path / "a b.gguf"
