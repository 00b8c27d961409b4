"""Sampling parameters: what cannot be is refused where it is made, not in the engine's thread."""

import math

import pytest

from headrace.engines import RequestError
from headrace.engines.llm import SamplingParams


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"min_tokens": 9, "max_tokens": 8},
        {"min_tokens": -1},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": math.nan},
        {"min_p": 1.5},
        {"top_k": -2},
        {"stop": ""},
        {"stop_token_ids": (-1,)},
    ],
)
def test_values_out_of_range_are_refused(values):
    with pytest.raises(RequestError):
        SamplingParams(**values)
