"""Beam search: against every text that there is, against a plain search, and beside other rows."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import GOLDEN, tiny_config, write_byte_tokenizer

VOCAB = 6
PROMPTS = [[3, 4, 5] * 7, [5], [4, 3] * 8]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A float32 engine over the tiny model with all but 6 tokens cut off; token 2 ends a text."""
    directory = tmp_path_factory.mktemp("small") / "model"
    shutil.copytree(GOLDEN / "gqa", directory)
    write_byte_tokenizer(directory)
    for path in directory.glob("*.safetensors"):
        tensors = load_file(path)
        wide = [name for name in tensors if "embed" in name or "lm_head" in name]
        cut = {name: tensors[name][:VOCAB].copy() for name in wide}
        save_file(tensors | cut, path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": VOCAB, "eos_token_id": 2}))
    with LLM(str(directory), tiny_config(deterministic=True, max_num_seqs=40, num_pages=300)) as llm:
        yield llm


def logprobs_after(engine, prefixes) -> np.ndarray:
    """Log-probabilities of every next token after each prefix, [prefix, VOCAB]."""
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=VOCAB)
    outputs = engine.generate([list(prefix) for prefix in prefixes], params)
    places = [output.outputs[0].logprobs[0] for output in outputs]
    return np.asarray([[place[token].logprob for token in range(VOCAB)] for place in places])


def every_text(engine, prompt, length) -> dict[tuple[int, ...], float]:
    """Log-probability of every text of up to `length` tokens that ends with token 2 or has them all."""
    growing, ended = {(): 0.0}, {}
    for count in range(1, length + 1):
        found = logprobs_after(engine, [(*prompt, *text) for text in growing])
        longer = {}
        for (text, logprob), row in zip(growing.items(), found, strict=True):
            for token in range(VOCAB):
                is_over = token == 2 or count == length
                (ended if is_over else longer)[(*text, token)] = logprob + row[token]
        growing = longer
    return ended


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0])
def test_a_search_as_wide_as_all_texts_finds_the_best_of_them(engine, length_penalty):
    texts = every_text(engine, PROMPTS[0], 3)
    scores = {text: logprob / len(text) ** length_penalty for text, logprob in texts.items()}
    best = sorted(scores, key=lambda text: -scores[text])[:5]
    params = SamplingParams(
        max_tokens=3, n=5, use_beam_search=True, beam_width=32, length_penalty=length_penalty,
        early_stopping="never",
    )  # fmt: skip
    found = engine.generate([PROMPTS[0]], params)[0].outputs
    assert [text.token_ids for text in found] == best
    for text in found:
        assert text.cumulative_logprob == pytest.approx(texts[text.token_ids], abs=1e-4)
        assert text.finish_reason == ("stop" if text.token_ids[-1] == 2 else "length")


def plain_search(engine, prompt, width, length) -> list[tuple[int, ...]]:
    """The definition, with early_stopping and a length_penalty of 1, one prefix after another."""
    live, ended = [((), 0.0)], []
    for count in range(1, length + 1):
        found = logprobs_after(engine, [(*prompt, *text) for text, _ in live])
        candidates = [
            ((*text, token), logprob + row[token])
            for (text, logprob), row in zip(live, found, strict=True)
            for token in np.argsort(-row)[: 2 * width].tolist()
        ]
        candidates.sort(key=lambda each: -each[1])
        live = []
        for place, (text, logprob) in enumerate(candidates[: 2 * width]):
            if text[-1] == 2 or count == length:
                ended += [(logprob / count, text)] if place < width else []
            elif len(live) < width:
                live.append((text, logprob))
        ended = sorted(ended, reverse=True)[:width]
        if not live or len(ended) == width:
            break
    return [text for _, text in ended]


def test_beams_beside_other_rows_and_searches_are_those_of_a_plain_search(engine):
    beams = SamplingParams(max_tokens=12, n=3, use_beam_search=True, beam_width=3, early_stopping=True)
    plain = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=1)
    expected = [plain_search(engine, prompt, 3, 12) for prompt in PROMPTS]
    alone = engine.generate(PROMPTS, plain)
    mixed = engine.generate(PROMPTS * 2, [beams] * 3 + [plain] * 3)
    assert [[text.token_ids for text in output.outputs] for output in mixed[:3]] == expected
    assert [each.outputs[0].token_ids for each in mixed[3:]] == [each.outputs[0].token_ids for each in alone]
    assert engine._engine._scheduler._pool.num_free == 299


def test_beams_have_the_logprobs_of_their_own_tokens(engine):
    params = SamplingParams(max_tokens=6, n=2, use_beam_search=True, beam_width=2, logprobs=1)
    for text in engine.generate([PROMPTS[0]], params)[0].outputs:
        total = sum(place[token].logprob for place, token in zip(text.logprobs, text.token_ids, strict=True))
        assert total == pytest.approx(text.cumulative_logprob, abs=1e-4)


def test_a_search_whose_beams_do_not_all_fit_gives_the_same_texts(engine, tiny_model):
    params = SamplingParams(max_tokens=30, n=4, use_beam_search=True, beam_width=4)
    prompts = [[40 + index] * 20 for index in range(3)]
    texts = []
    for num_pages in (200, 13):
        with LLM(str(tiny_model), tiny_config(deterministic=True, num_pages=num_pages)) as llm:
            outputs = llm.generate(prompts, params)
            texts.append([[text.token_ids for text in output.outputs] for output in outputs])
            assert llm._engine._scheduler._pool.num_free == num_pages - 1
            assert (llm.metrics()["preemptions"] > 0) == (num_pages == 13)
    assert texts[0] == texts[1]


def test_a_search_with_a_stop_string_is_refused(engine):
    params = SamplingParams(max_tokens=3, use_beam_search=True, beam_width=2, stop="x")
    assert "stop_token_ids" in engine.generate([PROMPTS[0]], params)[0].error.message


def test_more_beams_than_the_engine_has_rows_are_refused(tiny_model):
    with LLM(str(tiny_model), tiny_config(max_num_seqs=4)) as llm:
        params = SamplingParams(max_tokens=3, use_beam_search=True, beam_width=5)
        assert "max_num_seqs" in llm.generate([PROMPTS[0]], params)[0].error.message
