"""Configs to dicts and JSON and back."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

import headrace.engines
import headrace.pipelines
from headrace.engines import ConfigError, RequestError, Serializable
from headrace.engines.llm import EngineConfig, SamplingParams
from headrace.engines.llm.config import LayerConfig, ModelConfig, RopeConfig
from headrace.engines.whisper import TranscribeOptions, WhisperConfig
from headrace.pipelines import GenerateConfig, TranscribeConfig

MODEL = ModelConfig(
    vocab_size=9,
    hidden_size=8,
    intermediate_size=7,
    layers=(LayerConfig(rope=RopeConfig(kind="llama3", factor=8.0), window=8), LayerConfig(rope=None)),
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    norm_eps=1e-5,
    max_position=64,
)
RUN = {"inputs": ("a.jsonl", "b"), "output": "out", "model": "m"}
CONFIGS = [
    SamplingParams(temperature=0.5, stop=("a", "b"), stop_token_ids=(3,), seed=7),
    EngineConfig.of(dtype="float32", eos_token_ids=(1, 2), max_model_len=64),
    MODEL,
    WhisperConfig(
        return_timestamps="segment", stride_length_s=(4.0, 2.0), generation_config={"a": [1, None]}
    ),
    TranscribeOptions(return_timestamps=True, chunk_length_s=20.0, stride_length_s=3.0),
    GenerateConfig(**RUN, stop=("x",), with_columns=("token_ids",), overlong="truncate-left"),
    TranscribeConfig(**RUN, stride_length_s=(1.0, 2.0), task="translate"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_a_config_comes_back_from_json_as_it_was(config):
    again = type(config).from_json(config.to_json())
    assert again == config
    assert type(config).from_dict(config.to_dict()) == config
    assert again.replace() == config


def _packages(package):
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.rpartition(".")[2].startswith("_"):  # the native extension is no module of Python
            yield importlib.import_module(found.name)


def test_every_config_class_can_be_stored():
    endings = ("Config", "Params", "Options")
    for module in (*_packages(headrace.engines), *_packages(headrace.pipelines)):
        for name, found in inspect.getmembers(module, dataclasses.is_dataclass):
            if name.endswith(endings):
                assert issubclass(found, Serializable), f"{module.__name__}.{name} is not Serializable"


def test_an_unknown_key_is_refused_by_name():
    with pytest.raises(ConfigError, match="no field 'max_token': did you mean max_tokens"):
        SamplingParams.from_dict({"max_token": 3})
    with pytest.raises(ConfigError, match="no field 'zzz'"):
        EngineConfig().replace(zzz=1)
    with pytest.raises(ConfigError, match="no field 'kinds'"):
        ModelConfig.from_dict(MODEL.to_dict() | {"layers": [{"rope": {"kinds": "default"}}]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": "3"}, r"max_tokens is '3', wanted int"),
        ({"max_tokens": True}, r"max_tokens is True"),
        ({"temperature": None}, r"temperature is None, wanted float"),
        ({"stop": [1]}, r"stop is 1, wanted str"),
        ({"ignore_eos": 1}, r"ignore_eos is 1, wanted bool"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams.from_dict(values)


def test_a_choice_outside_the_list_and_a_missing_field_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"overlong is 'cut', wanted 'error', 'truncate-left'"):
        EngineConfig.from_dict({"overlong": "cut"})
    with pytest.raises(ConfigError, match="GenerateConfig needs output, model"):
        GenerateConfig.from_dict({"inputs": ["a"]})


def test_whole_numbers_are_taken_for_floats_and_checks_still_hold():
    assert SamplingParams.from_dict({"temperature": 1, "stop": "a"}).temperature == 1.0
    with pytest.raises(RequestError, match="top_p is 2"):
        SamplingParams.from_dict({"top_p": 2})


@pytest.mark.parametrize("text", ["", "[1]", "{", "null"])
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(ConfigError, match="SamplingParams is"):
        SamplingParams.from_json(text)
