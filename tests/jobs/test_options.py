"""Options are the fields of the config, their help the docstring under each, their values typed."""

from dataclasses import dataclass
from typing import Literal

import pytest

from headrace.engines.config_fields import flat_fields
from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser, add_options, config_values, field_docstrings
from headrace.pipelines import GenerateConfig, TranscribeConfig
from headrace.pipelines.generate import sampling_params


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    inputs: tuple[str, ...]
    """Files."""
    keep_columns: tuple[str, ...] = ()
    """Columns, 100 % of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example(Base):
    model: str
    """A model
    on two lines."""
    max_tokens: int = 256
    """Most tokens."""
    top_p: float = 1.0
    """Share (1: all)."""
    chat: bool = False
    """Wrap."""
    prefix_cache: bool = True
    """Reuse."""
    mode: Literal["fast", "exact"] | None = None
    """Mode."""
    stop: tuple[str, ...] = ()
    """Stops."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids."""
    stride_length_s: float | tuple[float, float] | None = None
    """Stride."""
    with_columns: tuple[str, ...] = ()
    """Further columns."""


def parser() -> Parser:
    made = Parser(prog="example", allow_abbrev=False)
    add_options(made, Example)
    return made


def values(*argv: str) -> dict:
    return config_values(parser().parse_intermixed_args(["a", "--model", "m", *argv]), Example)


def test_options_that_were_not_given_are_left_to_the_dataclass():
    assert values() == {"inputs": ("a",), "model": "m"}
    assert Example(**values()).max_tokens == 256


def test_values_have_the_types_of_the_fields():
    given = values("--max-tokens", "5", "--top-p=0.5", "--chat", "--mode", "exact", "--no-prefix-cache")
    assert given["max_tokens"] == 5
    assert given["top_p"] == 0.5
    assert given["chat"] is True
    assert given["prefix_cache"] is False
    assert given["mode"] == "exact"


def test_tuples_are_comma_lists_and_stops_are_repeated():
    given = values(
        "--keep-columns", "a, b", "--stop-token-ids", "1,2", "--stop", "x,y", "--stop", "\n", "--with", "c"
    )
    assert given["keep_columns"] == ("a", "b")
    assert given["stop_token_ids"] == (1, 2)
    assert given["stop"] == ("x,y", "\n")
    assert given["with_columns"] == ("c",)


def test_a_stride_is_one_number_or_left_and_right():
    assert values("--stride-length-s", "5")["stride_length_s"] == 5.0
    assert values("--stride-length-s", "5,2.5")["stride_length_s"] == (5.0, 2.5)


def test_inputs_may_stand_before_between_and_after_options():
    assert values("--chat", "b", "--max-tokens", "1", "c")["inputs"] == ("a", "b", "c")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--max-tokens", "many"], "--max-tokens: invalid int value: 'many'"),
        (["--mode", "slow"], "--mode: invalid choice: 'slow'"),
        (["--stop-token-ids", "1,x"], "--stop-token-ids: not a comma list of int values: '1,x'"),
        (["--stride-length-s", "1,2,3"], "neither a number nor two with a comma between them: '1,2,3'"),
        (["--max-tok", "5"], "unrecognized arguments: --max-tok"),
    ],
)
def test_a_bad_value_is_named(argv, said):
    with pytest.raises(UsageError) as raised:
        values(*argv)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_options_and_inputs_are_named():
    with pytest.raises(UsageError, match="--model"):
        parser().parse_intermixed_args(["a"])
    with pytest.raises(UsageError, match="INPUT"):
        parser().parse_intermixed_args(["--model", "m"])


def test_help_is_the_docstring_under_each_field_with_its_default():
    text = " ".join(parser().format_help().split())
    assert "A model on two lines." in text
    assert "Most tokens (default: 256)." in text
    assert "Share (1: all; default 1)." in text
    assert "Columns, 100 % of them." in text


@pytest.mark.parametrize("config_class", [GenerateConfig, TranscribeConfig])
def test_every_field_of_a_job_has_an_option_and_a_docstring(config_class):
    made = Parser(prog="job", allow_abbrev=False)
    add_options(made, config_class)
    options = flat_fields(config_class)
    assert {action.dest for action in made._actions} == {each.field.name for each in options} | {"help"}
    assert all(field_docstrings(each.owner)[each.field.name] for each in options)


def test_a_schema_is_read_from_its_file_and_reaches_the_params(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    made = Parser(prog="job", allow_abbrev=False)
    add_options(made, GenerateConfig)
    argv = ["a", "--model", "m", "--output", "o", "--json-schema", str(schema), "--logit-bias", "5=-1.5,7=2"]
    config = GenerateConfig.of(**config_values(made.parse_intermixed_args(argv), GenerateConfig))
    params = sampling_params(config)
    assert params.guided_json == '{"type": "object"}'
    assert params.logit_bias == {5: -1.5, 7: 2.0}
    with pytest.raises(UsageError, match="cannot be read"):
        made.parse_intermixed_args(["a", "--json-schema", str(tmp_path / "none.json")])
    with pytest.raises(ValueError, match="ID=BIAS"):
        GenerateConfig.of(**{**RUN, "logit_bias": ("5",)})


RUN = {"inputs": ("a",), "output": "o", "model": "m"}
