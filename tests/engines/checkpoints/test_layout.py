"""Which layout lies at a path."""

from pathlib import Path

import pytest

from headrace.engines.checkpoints.layout import detect_layout, model_files
from headrace.engines.errors import ModelError


@pytest.fixture
def make_model(tmp_path: Path):
    def make(*names: str) -> Path:
        for name in names:
            (tmp_path / name).write_bytes(b"GGUF" if name.endswith(".gguf") else b"\6\0\0\0")
        return tmp_path

    return make


def test_safetensors_make_the_hugging_face_layout(make_model):
    path = make_model("config.json", "model.safetensors", "pytorch_model.bin")
    assert detect_layout(path) == ("huggingface", path)


def test_model_bin_makes_the_faster_whisper_layout(make_model):
    path = make_model("config.json", "model.bin")
    assert detect_layout(path) == ("ctranslate2", path)


def test_the_one_gguf_file_of_a_folder_is_taken(make_model):
    path = make_model("a.gguf", "README.md")
    assert detect_layout(path) == ("gguf", path / "a.gguf")


def test_gguf_file_is_known_by_its_content(make_model):
    path = make_model("a.gguf")
    (path / "a.gguf").rename(path / "model")
    assert detect_layout(path / "model") == ("gguf", path / "model")


def test_files_of_a_model_leave_out_what_is_no_part_of_it(make_model):
    path = make_model("config.json", "model.safetensors", "pytorch_model.bin", "README.md", "tokenizer.json")
    names = [file.name for file in model_files(detect_layout(path))]
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl"])
def test_pickled_weights_are_refused(make_model, name: str):
    with pytest.raises(ModelError, match=f"only pickled weights .{name}.*safetensors"):
        detect_layout(make_model("config.json", name))


def test_model_bin_that_is_a_pickle_archive_is_refused(make_model):
    path = make_model("config.json")
    (path / "model.bin").write_bytes(b"PK\3\4")
    with pytest.raises(ModelError, match="only pickled weights"):
        detect_layout(path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["config.json"], "no model in"),
        (["flax_model.msgpack"], "no safetensors"),
        (["a.gguf", "b.gguf"], "name one of a.gguf, b.gguf"),
    ],
)
def test_folder_without_a_model_says_what_is_wanted(make_model, names: list[str], words: str):
    with pytest.raises(ModelError, match=words):
        detect_layout(make_model(*names))


def test_file_of_a_directory_layout_names_the_directory(make_model):
    path = make_model("model.safetensors")
    with pytest.raises(ModelError, match="give its directory"):
        detect_layout(path / "model.safetensors")


def test_gguf_name_with_another_content_is_refused(make_model):
    path = make_model("model.bin")
    (path / "model.bin").rename(path / "a.gguf")
    with pytest.raises(ModelError, match="does not begin with GGUF"):
        detect_layout(path / "a.gguf")
