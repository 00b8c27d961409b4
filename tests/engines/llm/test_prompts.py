"""The forms of prompts and parameters."""

import numpy as np
import pytest

from headrace.engines import ConfigError
from headrace.engines.llm import EncodeOptions, SamplingParams
from headrace.engines.llm.prompts import list_params, list_prompts

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("given", "listed", "is_one"),
    [
        ("text", ["text"], True),
        ([3, 4], [[3, 4]], True),
        ([USER, USER], [[USER, USER]], True),
        ({"prompt": "a"}, [{"prompt": "a"}], True),
        (["a", [3], [USER]], ["a", [3], [USER]], False),
        ([{"prompt": "a"}, {"prompt_token_ids": [1]}], [{"prompt": "a"}, {"prompt_token_ids": [1]}], False),
        ([], [], False),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]], False),
        (np.array([1, 2]), [[1, 2]], True),
        (
            {"input_ids": [[0, 5, 6], [7, 8, 9]], "attention_mask": [[0, 1, 1], [1, 1, 1]]},
            [[5, 6], [7, 8, 9]],
            False,
        ),
        ({"input_ids": np.array([5, 0]), "attention_mask": np.array([1, 0])}, [[5]], True),
        ({"input_ids": [[1, 2]]}, [[1, 2]], False),
    ],
)
def test_one_prompt_and_a_list_are_told_apart(given, listed, is_one):
    assert list_prompts(given) == (listed, is_one)


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        list_prompts({"input_ids": [[1, 2]], "attention_mask": [[1]]})


def test_params_are_one_for_all_or_one_each():
    warm = SamplingParams(temperature=1.0)
    assert list_params(None, 2) == [SamplingParams()] * 2
    assert list_params(warm, 2) == [warm] * 2
    assert list_params([warm, {"temperature": 1}, None], 3) == [warm, warm, SamplingParams()]
    with pytest.raises(ValueError, match="2 prompts and 1 sampling params"):
        list_params([warm], 2)
    with pytest.raises(TypeError, match="not int"):
        list_params([3], 1)
    with pytest.raises(ConfigError, match="no field 'temp'"):
        list_params({"temp": 1}, 1)


def test_options_of_a_tokenizer_that_cannot_be_honoured_are_refused():
    with pytest.raises(ConfigError, match="no field 'padding'"):
        EncodeOptions.from_dict({"padding": True})
    with pytest.raises(ConfigError, match="go together"):
        EncodeOptions(truncation=True)
