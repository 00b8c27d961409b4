"""The jobs as Python functions: inputs in any form, options by name, errors before anything runs."""

from pathlib import Path

import pytest

from headrace.jobs import run_generate, run_transcribe
from headrace.jobs.run import _config, _paths
from headrace.pipelines import GenerateConfig


@pytest.mark.parametrize(
    ("inputs", "kept"),
    [("a", ("a",)), (Path("a"), ("a",)), (["a", Path("b")], ("a", "b")), (iter("ab"), ("a", "b"))],
)
def test_inputs_are_one_path_or_many(inputs, kept):
    paths = _paths(inputs, Path("out"), "m")
    assert (paths.inputs, paths.output, paths.model) == (kept, "out", "m")


def test_options_are_the_fields_of_the_config_and_lists_are_taken():
    config = _config(GenerateConfig, _paths("a", "o", "m"), {"stop": ["x"], "chat": True})
    assert config == GenerateConfig(inputs=("a",), output="o", model="m", stop=("x",), chat=True)


@pytest.mark.parametrize("run", [run_generate, run_transcribe])
def test_an_unknown_option_is_refused_with_the_nearest_name(run):
    with pytest.raises(TypeError, match="no option dtypes: did you mean dtype"):
        run("a", "o", "m", dtypes="float32")


def test_an_option_that_beam_does_not_know_is_refused():
    with pytest.raises(ValueError, match="--no_such"):
        run_generate("a", "o", "m", beam_args=["--no_such=1"])


def test_a_value_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="max_tokens is 0"):
        run_generate("a", "o", "m", max_tokens=0)
