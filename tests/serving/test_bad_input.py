"""Whatever is sent to an endpoint, it answers, without a fault of its own, and goes on serving."""

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

INPUTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/count_tokens",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
"""The endpoints that take a body."""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("path", "num_examples"),
    [
        *((path, 4) for path in INPUTS[1:]),  # chat has the richest body, and takes 10 s for four
        *(pytest.param(path, 200, marks=pytest.mark.slow) for path in INPUTS),
    ],
)
def test_no_input_breaks_the_server(served, path, num_examples):
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    statuses = []

    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path]["POST"].as_strategy())
    def check(case):
        if len(statuses) % 2 and isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "tiny"  # which no example hits on by itself
        answer = case.call(base_url=served.url, timeout=60)
        statuses.append(answer.status_code)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    check()
    assert len(statuses) >= num_examples
    assert {400, 404} & set(statuses)
    asked = {"model": "tiny", "prompt": "ab", "max_tokens": 2}
    assert httpx.post(f"{served.url}/v1/completions", json=asked, timeout=60).status_code == 200


def test_wrong_values_for_a_model_that_is_there_are_refused(served):
    """What a description cannot say: schemathesis seldom hits on the name of a model."""
    url = f"{served.url}/v1/completions"
    known = {"model": "tiny", "prompt": "ab", "max_tokens": 1}
    for changes in [
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [[10**9]]},
        {"prompt": [[-1]]},
        {"prompt": "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "ignore")},
        {"max_tokens": -(2**70)},
        {"max_tokens": 2**70},
        {"seed": 2**70},
        {"seed": -1},
        {"top_k": 2**70},
        {"temperature": 1e308},
        {"top_p": -0.5},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {str(2**70): 1}},
        {"stop": [""]},
        {"stop_token_ids": [2**70]},
        {"allowed_token_ids": []},
        {"bad_words": [""]},
        {"guided_regex": "("},
        {"guided_grammar": "nonsense ::= ::="},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
        {"stream": True, "n": 128, "best_of": 2},
        {"logprobs": 10**6},
    ]:
        answer = httpx.post(url, json=known | changes, timeout=60)
        assert answer.status_code < 500, (changes, answer.text)
    for body in (b"", b"{", b"null", b"[]", b'{"model": NaN}', b"\xff\xfe", b'{"a":' * 5000):
        answer = httpx.post(url, content=body, headers={"Content-Type": "application/json"}, timeout=60)
        assert answer.status_code == 400, (body[:20], answer.text)
    assert httpx.post(url, json=known, timeout=60).status_code == 200
