"""Sampling parameters: what cannot be is refused where it is made, not in the engine's thread."""

import dataclasses
import math

import pytest

from headrace.engines import RequestError
from headrace.engines.llm import SamplingParams
from headrace.engines.llm.sampling_checks import check_types


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"n": 0},
        {"best_of": 0},
        {"min_tokens": 9, "max_tokens": 8},
        {"min_tokens": -1},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": math.nan},
        {"min_p": 1.5},
        {"top_k": -2},
        {"presence_penalty": 2.1},
        {"frequency_penalty": math.nan},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.inf},
        {"logit_bias": {5: math.inf}},
        {"logit_bias": {-5: 1.0}},
        {"allowed_token_ids": ()},
        {"allowed_token_ids": (-1,)},
        {"suppress_tokens": (-1,)},
        {"bad_words": ""},
        {"logprobs": -1},
        {"logprobs": 129},
        {"prompt_logprobs": -1},
        {"stop": ""},
        {"stop_token_ids": (-1,)},
        {"logits_processors": "module"},
        {"beam_width": 0, "use_beam_search": True},
        {"length_penalty": math.nan, "use_beam_search": True, "beam_width": 2},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(values):
    with pytest.raises(RequestError, match=r"wanted|negative|empty"):
        SamplingParams(**values)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SamplingParams)])
def test_a_value_of_another_type_is_refused_by_name(name):
    params = SamplingParams()
    # Past the type checks that the tests put on every call.
    object.__setattr__(params, name, b"bytes")
    with pytest.raises(RequestError, match=name):
        check_types(params)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"n": 2}, "would all be the same"),
        ({"best_of": 2}, "would all be the same"),
        ({"n": 3, "best_of": 2, "temperature": 1.0}, "less than n"),
        ({"beam_width": 2}, "set use_beam_search"),
        ({"length_penalty": 0.5}, "set use_beam_search"),
        ({"early_stopping": True}, "set use_beam_search"),
        ({"use_beam_search": True}, "how many beams"),
        ({"use_beam_search": True, "beam_width": 2, "best_of": 3}, "differ"),
        ({"use_beam_search": True, "beam_width": 2, "n": 3}, "2 beams for n = 3"),
        ({"use_beam_search": True, "beam_width": 2, "temperature": 0.5}, "draws nothing"),
        ({"use_beam_search": True, "beam_width": 2, "presence_penalty": 0.5}, "ranks by"),
        ({"use_beam_search": True, "beam_width": 2, "guided_regex": "a"}, "ranks by"),
        ({"guided_regex": "a", "guided_json": True}, "exclude each other"),
        ({"guided_regex": "a", "min_tokens": 2}, "dead end"),
        ({"guided_choice": ["a"], "suppress_tokens": [5]}, "dead end"),
        ({"allowed_token_ids": [5, 6], "suppress_tokens": [6, 5]}, "no token could be made"),
    ],
    ids=str,
)
def test_what_cannot_work_together_is_refused_with_the_reason(values, reason):
    with pytest.raises(RequestError, match=reason):
        SamplingParams(**values)
