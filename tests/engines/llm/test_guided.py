"""Guided decoding and logits processors: every text follows its guide, whoever shares the batch."""

import json
import random
import re

import numpy as np
import pytest

from headrace.engines.llm import LLM, SamplingParams
from headrace.engines.llm.guided import GuideState
from tests.engines.llm.conftest import tiny_config

PROMPT = [40, 41, 42, 43]
NUM_SCHEMAS = 200


def random_schema(rng: random.Random, depth: int = 0) -> dict:
    """A schema whose texts cannot be long: a random model would write on for ever."""
    kinds = ["integer", "boolean", "enum", "string", *(["array", "object"] if depth < 2 else [])]
    match "object" if depth == 0 else rng.choice(kinds):
        case "integer":
            low = rng.randrange(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(100)}
        case "boolean":
            return {"type": "boolean"}
        case "enum":
            return {"enum": [rng.choice(["red", "grün", 'a "b"', 7, None]), f"x{rng.randrange(99)}"]}
        case "string":
            return {"type": "string", "maxLength": rng.randrange(1, 8)}
        case "array":
            return {"type": "array", "items": random_schema(rng, depth + 1), "maxItems": rng.randrange(1, 3)}
    names = [f"field_{rng.randrange(1000)}" for _ in range(rng.randrange(1, 4))]
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth + 1) for name in names},
        "required": list(dict.fromkeys(names)),
        "additionalProperties": False,
    }


def follows(value, schema: dict) -> bool:
    """Whether a value is what one of `random_schema` describes."""
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return type(value) is bool
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "array":
            return len(value) <= schema["maxItems"] and all(follows(each, schema["items"]) for each in value)
    properties = schema["properties"]
    return set(value) == set(properties) and all(follows(value[name], properties[name]) for name in value)


@pytest.mark.slow
def test_two_hundred_texts_with_schemas_of_their_own_all_parse(tiny_model):
    rng = random.Random(0)
    schemas = [random_schema(rng) for _ in range(NUM_SCHEMAS)]
    params = [
        SamplingParams(max_tokens=250, guided_json=schema, temperature=float(row % 2), seed=row)
        for row, schema in enumerate(schemas)
    ]
    with LLM(str(tiny_model), tiny_config(max_num_seqs=64, max_model_len=512, num_pages=1200)) as llm:
        outputs = llm.generate([PROMPT] * NUM_SCHEMAS, params)
    for schema, output in zip(schemas, outputs, strict=True):
        assert output.error is None
        assert output.outputs[0].finish_reason == "stop"
        assert follows(json.loads(output.text), schema), (schema, output.text)


@pytest.mark.parametrize(
    ("guide", "pattern"),
    [
        ({"guided_regex": r"[a-f]{3}-\d{2,4}"}, r"[a-f]{3}-\d{2,4}"),
        ({"guided_choice": ["yes", "no", 'it\'s "so"']}, r"yes|no|it's \"so\""),
        (
            {"guided_grammar": 'start: "[" WORD ("," WORD)? "]"\nWORD: /[a-z]{1,4}/'},
            r"\[[a-z]{1,4}(,[a-z]{1,4})?\]",
        ),
        ({"guided_grammar": 'root ::= "ab" | "cd"'}, "ab|cd"),
        ({"guided_json": True}, r"\{.*"),
    ],
    ids=str,
)
def test_every_kind_of_guide_is_obeyed(tiny_llm, guide, pattern):
    outputs = tiny_llm.generate(
        [PROMPT] * 6,
        [SamplingParams(max_tokens=40, temperature=1.0, seed=seed, **guide) for seed in range(6)],
    )
    for output in outputs:
        assert output.error is None
        assert re.fullmatch(pattern, output.text, re.DOTALL), output.text


def test_rows_without_a_guide_are_not_touched_by_those_that_have_one(tiny_llm):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(32, 288, length).tolist() for length in (5, 30, 70)]
    plain = [
        SamplingParams(max_tokens=30, ignore_eos=True),
        SamplingParams(max_tokens=30, ignore_eos=True, temperature=1.0, seed=1),
        SamplingParams(max_tokens=30, ignore_eos=True, repetition_penalty=1.5, logprobs=2),
    ]
    alone = tiny_llm.generate(prompts, plain)
    guided = SamplingParams(max_tokens=60, guided_regex="[a-z]{20,40}")
    beside = tiny_llm.generate([*prompts, PROMPT], [*plain, guided])
    for one, other in zip(alone, beside, strict=False):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
    assert re.fullmatch("[a-z]{20,40}", beside[3].text)


@pytest.mark.parametrize(
    "guide", [{"guided_regex": "a(b"}, {"guided_json": '{"type": "nothing"}'}, {"guided_json": "{"}], ids=str
)
def test_a_guide_that_cannot_be_compiled_is_an_error_of_its_row(tiny_llm, guide):
    bad, good = tiny_llm.generate([PROMPT] * 2, [SamplingParams(**guide), SamplingParams(max_tokens=2)])
    assert bad.error.kind == "params"
    assert "guide" in bad.error.message
    assert good.error is None


def test_a_state_follows_tokens_that_are_not_the_ones_it_was_fed(tiny_llm):
    start = tiny_llm._encoder._rules.make(SamplingParams(guided_regex="(ab|cd)e")).guide
    a, b, c, e = (tiny_llm._tokenizer.encode_part(letter)[0] for letter in "abce")
    state = GuideState(start)
    assert not state.follow([a, b]).is_error()
    assert not state.follow([c]).is_error()
    assert state.follow([a, b, e]).is_accepting()
    assert state.follow([a, e]).is_error()


def only_one_token(prompt, outputs, logits):
    """A processor of this test: the next token is 50 plus the number of outputs."""
    assert prompt.tolist() == PROMPT
    logits[:] = -np.inf
    logits[50 + len(outputs)] = 0.0
    return logits


def fails_at_three(prompt, outputs, logits):
    """A processor of this test that raises at the fourth token."""
    if len(outputs) == 3:
        raise KeyError("three")
    return logits


def path_of(function) -> str:
    return f"{__name__}:{function.__name__}"


def test_a_processor_changes_its_row_and_no_other(tiny_llm):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    own = params.replace(logits_processors=path_of(only_one_token))
    alone = tiny_llm.generate([PROMPT], params)[0]
    changed, plain = tiny_llm.generate([PROMPT] * 2, [own, params])
    assert changed.outputs[0].token_ids == tuple(range(50, 70))
    assert plain.outputs[0].token_ids == alone.outputs[0].token_ids


def test_a_processor_that_raises_or_is_not_there_is_an_error_of_its_row(tiny_llm):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    raising = params.replace(logits_processors=path_of(fails_at_three))
    missing = params.replace(logits_processors="headrace.engines:nothing")
    outputs = tiny_llm.generate([PROMPT] * 3, [raising, missing, params])
    assert "fails_at_three raised KeyError" in outputs[0].error.message
    assert "headrace.engines:nothing" in outputs[1].error.message
    assert len(outputs[2].outputs[0].token_ids) == 20
