"""The Hugging Face layout, whole and sharded."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.errors import ModelError

FIRST = {"model.embed_tokens.weight": np.arange(8, dtype=np.float32).reshape(4, 2)}
SECOND = {"model.norm.weight": np.ones(2, np.float16)}


@pytest.fixture
def write_model(tmp_path: Path):
    def write(*, config: dict | None = None) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config or {"model_type": "llama", "hidden_size": 2}))
        tokenizer = Tokenizer(models.WordLevel({"hi": 0, "</s>": 1, "<s>": 2, "?": 3}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return tmp_path

    return write


@pytest.fixture
def whole(write_model) -> Path:
    path = write_model()
    save_file(FIRST | SECOND, path / "model.safetensors")
    return path


@pytest.fixture
def sharded(write_model) -> Path:
    path = write_model()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, tensors in zip(names, (FIRST, SECOND), strict=True):
        save_file(tensors, path / name)
    shards = dict.fromkeys(FIRST, names[0]) | dict.fromkeys(SECOND, names[1])
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return path


@pytest.mark.parametrize("layout", ["whole", "sharded"])
def test_tensors_are_read_from_one_file_or_from_shards(layout: str, request: pytest.FixtureRequest):
    checkpoint = open_checkpoint(str(request.getfixturevalue(layout)))
    assert checkpoint.model.format == "huggingface"
    assert checkpoint.tensor_names() == FIRST.keys() | SECOND.keys()
    for name, values in (FIRST | SECOND).items():
        np.testing.assert_array_equal(checkpoint.tensor(name), values)
        assert checkpoint.tensor(name).dtype == values.dtype


def test_configs_are_those_of_the_files(whole: Path):
    (whole / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (whole / "preprocessor_config.json").write_text('{"feature_size": 128}')
    checkpoint = open_checkpoint(str(whole))
    assert checkpoint.config == {"model_type": "llama", "hidden_size": 2}
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert checkpoint.preprocessor_config == {"feature_size": 128}


def test_absent_configs_are_empty(whole: Path):
    checkpoint = open_checkpoint(str(whole))
    assert checkpoint.generation_config == {}
    assert checkpoint.preprocessor_config == {}


def test_unknown_tensor_is_named(whole: Path):
    with pytest.raises(ModelError, match=r"no tensor 'lm_head\.weight'"):
        open_checkpoint(str(whole)).tensor("lm_head.weight")


def test_missing_shard_is_named(sharded: Path):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 2 shards are missing.*'model-00002-of-00002\.safetensors'"):
        open_checkpoint(str(sharded))


def test_shard_that_is_cut_is_named(sharded: Path):
    shard = sharded / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model-00001-of-00002\.safetensors' is cut short"):
        open_checkpoint(str(sharded))


def test_shard_that_lacks_a_tensor_of_the_index_is_named(sharded: Path):
    save_file({"other": np.zeros(1, np.float32)}, sharded / "model-00002-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"has no tensor 'model\.norm\.weight'"):
        open_checkpoint(str(sharded))


def test_shards_without_an_index_are_refused(sharded: Path):
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors\.index\.json"):
        open_checkpoint(str(sharded))


def test_index_must_not_point_out_of_the_folder(sharded: Path):
    index = {"weight_map": {"a": "../other.safetensors"}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="same directory"):
        open_checkpoint(str(sharded))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_cut_json_is_one_line_with_its_name(sharded: Path, name: str):
    (sharded / name).write_text('{"weight_map": {')
    with pytest.raises(ModelError, match=f"not JSON.*{name}"):
        open_checkpoint(str(sharded))


def test_missing_config_is_one_line(whole: Path):
    (whole / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        open_checkpoint(str(whole))


def test_architecture_that_brings_its_own_code_is_refused(write_model):
    path = write_model(config={"model_type": "my_own", "auto_map": {"AutoConfig": "mine.Config"}})
    save_file(FIRST, path / "model.safetensors")
    with pytest.raises(ModelError, match=r"'my_own'.*trust_remote_code"):
        open_checkpoint(str(path))


def test_auto_map_of_a_built_in_architecture_is_harmless(write_model):
    path = write_model(config={"model_type": "llama", "auto_map": {"AutoModel": "mine.Model"}})
    save_file(FIRST, path / "model.safetensors")
    assert open_checkpoint(str(path)).config["model_type"] == "llama"


def test_tokenizer_has_the_names_and_template_of_its_files(whole: Path):
    settings = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False, "special": True, "__type": "AddedToken"},
        "pad_token": None,
        "chat_template": "old",
        "model_max_length": 77,
        "tokenizer_class": "SomethingOfItsOwn",
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
    }
    (whole / "tokenizer_config.json").write_text(json.dumps(settings))
    (whole / "special_tokens_map.json").write_text('{"pad_token": "</s>"}')
    (whole / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    tokenizer = open_checkpoint(str(whole)).tokenizer()
    assert (tokenizer.bos_token, tokenizer.eos_token_id, tokenizer.model_max_length) == ("<s>", 1, 77)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "[hi]"
    assert tokenizer("hi hi")["input_ids"] == [0, 0]


def test_template_of_the_settings_is_used_where_there_is_no_file(whole: Path):
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (whole / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = open_checkpoint(str(whole)).tokenizer()
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "D"
    assert tokenizer.apply_chat_template(messages, tokenize=False, chat_template="tool_use") == "T"


def test_tokenizer_is_built_once(whole: Path):
    checkpoint = open_checkpoint(str(whole))
    assert checkpoint.tokenizer() is checkpoint.tokenizer()


@pytest.mark.parametrize(("content", "words"), [(None, r"no tokenizer\.json"), ("{", "cannot read")])
def test_missing_or_cut_tokenizer_is_one_line(whole: Path, content: str | None, words: str):
    (whole / "tokenizer.json").unlink()
    if content is not None:
        (whole / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=words) as caught:
        open_checkpoint(str(whole)).tokenizer()
    assert "\n" not in str(caught.value)
