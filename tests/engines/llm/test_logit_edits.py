"""Penalties, biases, bad words and allowed tokens against a NumPy oracle, alone and through the engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines.llm import LLM, SamplingParams
from headrace.engines.llm.logit_edits import Extras, edit_logits, pack_edits, pack_mask, record_tokens
from headrace.engines.llm.request import LLMRequest, Sequence
from headrace.engines.llm.token_rules import RuleMaker
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.test_model import all_logits

VOCAB = 288
BURST = 4
CASES = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.7},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "presence_penalty": -2.0, "frequency_penalty": 0.25},
    {"logit_bias": {40: 5.0, 41: -3.0, 287: 1e9}},
    {"suppress_tokens": (40, 50, 60)},
    {"allowed_token_ids": (0, 31, 32, 63, 64, 200, 287)},
    {"bad_words": ("ab", "abc", "q", "a" * 16)},
    {"repetition_penalty": 1.5, "logit_bias": {45: -1.0}, "suppress_tokens": (45, 46), "bad_words": ("aa",)},
]


def encode(text: str) -> list[int]:
    """Tokens of the letters: a is 40."""
    return [40 + ord(letter) - ord("a") for letter in text if letter != " "]


def make_sequence(params: SamplingParams, prompt: list[int], outputs: list[int]) -> Sequence:
    request = LLMRequest(
        request_id="row",
        prompt_token_ids=tuple(prompt),
        params=params,
        seed=0,
        rules=RuleMaker(encode, VOCAB).make(params),
        submit_time_s=0.0,
    )
    return Sequence(
        request=request, tokens=[*prompt, *outputs], max_total=999, prefill_end=len(prompt) + len(outputs)
    )


def expected(logits: np.ndarray, params: SamplingParams, prompt: list[int], outputs: list[int]) -> np.ndarray:
    """The edited logits of one row [V], over the whole vocabulary and in float64."""
    logits = logits.astype(np.float64)
    counts = np.bincount(np.asarray(outputs, int), minlength=VOCAB)
    is_seen = np.isin(np.arange(VOCAB), [*prompt, *outputs])
    repeated = np.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    logits = np.where(is_seen, repeated, logits)
    logits = logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += bias
    logits[list(params.suppress_tokens)] = -np.inf
    for word in map(encode, params.bad_words):
        if len(word) == 1 or outputs[-len(word) + 1 :] == word[:-1]:
            logits[word[-1]] = -np.inf
    if params.allowed_token_ids is not None:
        logits[~np.isin(np.arange(VOCAB), params.allowed_token_ids)] = -np.inf
    return logits


def rows_of(seed: int) -> list[tuple[SamplingParams, list[int], list[int]]]:
    """Each case twice, with tokens from a small part of the vocabulary, so that they repeat."""
    rng = np.random.default_rng(seed)
    rows = []
    for case in [*CASES, *CASES, {}]:
        prompt = rng.integers(38, 48, rng.integers(1, 40)).tolist()
        rows.append((SamplingParams(**case), prompt, rng.integers(38, 48, rng.integers(0, 30)).tolist()))
    rows.append((SamplingParams(bad_words=("ab",)), encode("a"), []))
    rows.append((SamplingParams(bad_words=("ab",)), encode("b"), encode("ba")))
    return rows


def test_edited_logits_are_those_of_the_oracle_and_stay_so_as_tokens_are_made():
    rows = rows_of(0)
    rng = np.random.default_rng(1)
    sequences = [make_sequence(*row) for row in rows]
    num_rows = len(rows) + 3
    packed = Extras(pack_edits(sequences, num_rows, BURST), pack_mask(sequences, num_rows, VOCAB))
    extras = jax.tree.map(jnp.asarray, packed)
    for step in range(BURST):
        logits = rng.normal(0, 3, (num_rows, VOCAB)).astype(np.float32)
        edited = np.asarray(edit_logits(jnp.asarray(logits), extras))
        for row, (params, prompt, outputs) in enumerate(rows):
            wanted = expected(logits[row], params, prompt, outputs)
            np.testing.assert_allclose(edited[row], wanted, rtol=1e-5, atol=1e-5, err_msg=str(params))
        np.testing.assert_array_equal(edited[len(rows) :], logits[len(rows) :])
        made = rng.integers(38, 48, num_rows).astype(np.int32)
        extras = record_tokens(extras, jnp.asarray(made), jnp.int32(step - BURST))
        rows = [(*row[:2], [*row[2], int(token)]) for row, token in zip(rows, made, strict=False)]


def test_a_batch_without_rules_has_no_extras():
    sequences = [make_sequence(SamplingParams(), [40], [])] * 2
    assert pack_edits(sequences, 2, num_new=8) is None
    assert pack_mask(sequences, 2, VOCAB) is None


ENGINE_CASES = [
    {"presence_penalty": 2.0, "frequency_penalty": 1.0},
    {"repetition_penalty": 1.8},
    {"frequency_penalty": -0.5, "logit_bias": {100: 4.0, 101: -50.0}},
    {"suppress_tokens": tuple(range(32, 120))},
    {"allowed_token_ids": tuple(range(60, 90))},
    {},
]
NUM_ROWS = 12


def prompts_and_params(**more) -> tuple[list[list[int]], list[SamplingParams]]:
    """Rows of every case, with prompts around the borders of pages and chunks."""
    rng = np.random.default_rng(2)
    lengths = [3, 15, 16, 17, 31, 33, 64, 65, 90, 5, 40, 70]
    prompts = [rng.integers(32, VOCAB, length).tolist() for length in lengths]
    settings = {"max_tokens": 40, "ignore_eos": True} | more
    return prompts, [SamplingParams(**ENGINE_CASES[i % 6], seed=i, **settings) for i in range(NUM_ROWS)]


def test_every_greedy_token_of_the_engine_is_the_oracles(tiny_llm):
    prompts, params = prompts_and_params()
    outputs = tiny_llm.generate(prompts, params)
    checked = list(zip(prompts, params, outputs, strict=True))[:4]
    texts = [list(output.outputs[0].token_ids) for _, _, output in checked]
    found = all_logits("gqa", [[*row[0], *made] for row, made in zip(checked, texts, strict=True)])
    for (prompt, own, _), made, logits in zip(checked, texts, found, strict=True):
        for index, token in enumerate(made):
            wanted = expected(logits[len(prompt) + index - 1], own, prompt, made[:index])
            assert wanted[token] >= wanted.max() - 1e-4, (own, index)


@pytest.mark.slow
def test_bad_words_of_several_tokens_are_not_made(tiny_llm):
    prompt = list(range(40, 60))
    free_params = SamplingParams(max_tokens=20, ignore_eos=True, allowed_token_ids=tuple(range(32, 120)))
    free = tiny_llm.generate([prompt], free_params)[0].outputs[0]
    assert len(free.text) == 20
    params = free_params.replace(bad_words=free.text[5:8])
    made = tiny_llm.generate([prompt], params)[0].outputs[0]
    assert made.text[:7] == free.text[:7]
    assert free.text[5:8] not in made.text


@pytest.mark.parametrize(
    "changes",
    [{"decode_burst": 1}, {"decode_burst": 32}, {"max_num_batched_tokens": 32}, {"num_pages": 24}],
    ids=str,
)
@pytest.mark.slow
def test_tokens_depend_on_no_burst_chunk_or_preemption(tiny_model, changes):
    prompts, greedy = prompts_and_params()
    params = [own.replace(temperature=float(row % 2)) for row, own in enumerate(greedy)]
    expected_ids = run(tiny_model, prompts, params)
    assert run(tiny_model, prompts, params, **changes) == expected_ids


def run(model, prompts, params, **changes) -> list[tuple[int, ...]]:
    with LLM(str(model), tiny_config(**changes)) as llm:
        outputs = llm.generate(prompts, params)
        if "num_pages" in changes:
            assert llm.metrics()["preemptions"] > 0
        return [output.outputs[0].token_ids for output in outputs]
