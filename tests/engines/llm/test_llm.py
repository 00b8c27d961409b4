"""The face of the text engine: prompts of every form and kind of wrongness, params at their extremes."""

from dataclasses import replace

import pytest

from headrace.engines import ConfigError, EngineError, ModelError
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.llm import LLM, ChatOptions, SamplingParams, check_model
from headrace.engines.llm.tokenizer import PromptTokenizer
from tests.engines.llm.conftest import GOLDEN, tiny_config

SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


def test_one_prompt_gives_one_output_and_a_list_gives_a_list(tiny_llm):
    assert tiny_llm.generate("ab", SHORT).error is None
    assert tiny_llm.generate([40, 41], SHORT).prompt_token_ids == (40, 41)
    assert [each.error for each in tiny_llm.generate([[40], "ab"], SHORT)] == [None, None]
    assert tiny_llm.generate([], SHORT) == []


def test_a_prompt_that_cannot_be_is_an_error_of_its_own(tiny_llm):
    bad = [[], "", [-1], [288], [2**40], "half \ud800", b"ab", [{}], [{"role": "user"}]]
    outputs = tiny_llm.generate(["good", *bad, [287]], SHORT)
    assert [output.error is None for output in outputs] == [True, *[False] * len(bad), True]
    kinds = [output.error.kind for output in outputs[1:-1]]
    assert kinds[:5] == [*["prompt_empty"] * 2, *["token_ids"] * 3]
    assert kinds[5:] == [*["prompt_type"] * 2, *["template"] * 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 2**40},
        {"top_p": 1e-300},
        {"temperature": 1e300},
        {"seed": -1},
        {"seed": 2**70},
        {"min_tokens": 2**40, "max_tokens": 2**41},
    ],
)
def test_params_beyond_32_bits_are_obeyed_as_far_as_can_be(tiny_llm, changes):
    params = replace(SHORT, **({"temperature": 1.0} | changes))
    output = tiny_llm.generate("ab", params)
    assert output.error is None
    if "top_p" in changes:
        assert output.outputs[0].token_ids == tiny_llm.generate("ab", SHORT).outputs[0].token_ids


def test_a_stop_id_that_the_model_lacks_is_an_error_of_its_row(tiny_llm):
    far, good = tiny_llm.generate(["a", "a"], [replace(SHORT, stop_token_ids=(2**40,)), SHORT])
    assert far.error.kind == "token_ids"
    assert good.error is None


@pytest.mark.parametrize(
    "changes", [{"pad_token_id": 288}, {"bos_token_id": 2**40}, {"eos_token_ids": (5, 999)}]
)
def test_token_ids_of_the_config_must_be_the_models(tiny_model, changes):
    with pytest.raises(ConfigError, match="none of the model's"):
        check_model(open_checkpoint(str(tiny_model)), tiny_config(**changes))


def test_what_no_row_could_have_is_refused_before_a_run(tiny_model):
    checkpoint = open_checkpoint(str(tiny_model))
    with pytest.raises(ConfigError, match="no chat template"):
        check_model(checkpoint, tiny_config(), chat=True)
    with pytest.raises(ConfigError, match="more than 16"):
        check_model(checkpoint, tiny_config(), SamplingParams(stop_token_ids=tuple(range(16, 32))))
    check_model(checkpoint, tiny_config(), SamplingParams(stop_token_ids=(5,)))


def test_closing_twice_is_fine_and_using_it_after_is_an_engine_error(tiny_model):
    llm = LLM(str(tiny_model), tiny_config())
    llm.close()
    llm.close()
    with pytest.raises(EngineError):
        llm.generate("ab", SHORT)


def test_a_template_says_itself_why_it_refuses_messages(tiny_llm, monkeypatch):
    template = "{% if messages|length % 2 == 0 %}{{ raise_exception('roles must alternate') }}{% endif %}a"
    monkeypatch.setattr(tiny_llm._tokenizer._tokenizer, "chat_template", template)
    turn = {"role": "user", "content": "b"}
    good, bad = tiny_llm.chat([[turn], [turn, turn]], SHORT)
    assert good.error is None
    assert "roles must alternate" in bad.error.message


def test_what_ends_a_text_is_kept_only_where_that_is_asked_for(tiny_llm):
    long = SamplingParams(max_tokens=24, ignore_eos=True)
    whole = tiny_llm.generate("abc", long).outputs[0]
    stop, token = whole.text[4:7], whole.token_ids[6]
    for changes, ending, reason in [({"stop": stop}, stop, stop), ({"stop_token_ids": (token,)}, "", token)]:
        without = tiny_llm.generate("abc", replace(long, **changes)).outputs[0]
        kept = tiny_llm.generate("abc", replace(long, **changes, include_stop_str_in_output=True)).outputs[0]
        assert without.token_ids == kept.token_ids
        assert without.stop_reason == kept.stop_reason == reason
        assert kept.text == without.text + (ending or tiny_llm._tokenizer.decode([token]))


def test_a_stop_string_before_min_tokens_does_not_cut(tiny_llm):
    whole = tiny_llm.generate("abc", SamplingParams(max_tokens=24, ignore_eos=True)).outputs[0]
    params = SamplingParams(max_tokens=24, ignore_eos=True, stop=whole.text[2], min_tokens=23)
    kept = tiny_llm.generate("abc", params).outputs[0]
    assert len(kept.token_ids) >= 23
    assert kept.text.startswith(whole.text[:20])


def test_special_tokens_are_shown_only_where_that_is_asked_for(tiny_llm):
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=0, ignore_eos=True)
    for seed in range(20):
        params = replace(params, seed=seed)
        hidden = tiny_llm.generate("ab", params).outputs[0]
        shown = tiny_llm.generate("ab", replace(params, skip_special_tokens=False)).outputs[0]
        assert hidden.token_ids == shown.token_ids
        has_special = any(token < 32 for token in hidden.token_ids)
        assert ("<" in shown.text) >= has_special
        assert has_special == (hidden.text != shown.text)


def test_token_ids_take_the_place_of_prompts(tiny_llm):
    padded = {"input_ids": [[40, 41, 0], [42, 43, 44]], "attention_mask": [[1, 1, 0], [1, 1, 1]]}
    outputs = tiny_llm.generate(prompt_token_ids=padded, sampling_params={"max_tokens": 3})
    assert [output.prompt_token_ids for output in outputs] == [(40, 41), (42, 43, 44)]
    assert tiny_llm.generate(prompt_token_ids=[40, 41]).prompt_token_ids == (40, 41)
    for prompts in ({}, {"prompts": "a", "prompt_token_ids": [40]}):
        with pytest.raises(ValueError, match="either prompts or prompt_token_ids"):
            tiny_llm.generate(**prompts)


def test_options_of_the_tokenizer_are_obeyed(tiny_llm):
    cut = tiny_llm.generate("abcdef", SHORT, tokenizer_kwargs={"truncation": True, "max_length": 2})
    left = {"truncation": True, "max_length": 2, "truncation_side": "left"}
    assert tiny_llm.processor.decode(cut.prompt_token_ids) == "ab"
    assert (
        tiny_llm.processor.decode(tiny_llm.generate("abcdef", SHORT, tokenizer_kwargs=left).prompt_token_ids)
        == "ef"
    )


def test_tokens_are_counted_as_the_engine_takes_them(tiny_llm):
    assert tiny_llm.count_tokens("abc") == len(tiny_llm.generate("abc", SHORT).prompt_token_ids)
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    options = ChatOptions(chat_template=template)
    assert tiny_llm.count_tokens([{"role": "user", "content": "ab"}], options) == len("user:ab")
    assert tiny_llm.max_prompt_len == 255


def test_a_tokenizer_may_be_given_as_path_or_object(tiny_model, tmp_path):
    tokenizer = open_checkpoint(str(tiny_model)).tokenizer()
    (tmp_path / "template.jinja").write_text("<{{ messages[0].content }}>")
    for given in (tokenizer, tokenizer.backend_tokenizer, tiny_model, str(tiny_model)):
        prompt_tokenizer = PromptTokenizer(
            open_checkpoint(str(GOLDEN / "gqa")), tiny_config(), given, tmp_path / "template.jinja"
        )
        assert prompt_tokenizer.decode(prompt_tokenizer.encode("abc")) == "abc"
        tokens = prompt_tokenizer.encode_chat([{"role": "user", "content": "é"}], ChatOptions())
        assert prompt_tokenizer.decode(tokens) == "<é>"
    with pytest.raises(ModelError, match="class int"):
        PromptTokenizer(open_checkpoint(str(GOLDEN / "gqa")), tiny_config(), 3)


def test_the_models_config_may_be_overridden(tiny_model):
    with LLM(
        str(tiny_model), tiny_config(max_model_len=None), hf_overrides={"max_position_embeddings": 96}
    ) as llm:
        assert llm.max_model_len == 96
    with LLM(
        str(tiny_model),
        tiny_config(max_model_len=None),
        hf_overrides=lambda config: config | {"max_position_embeddings": 64},
    ) as llm:
        assert llm.max_model_len == 64


def test_a_conversation_is_answered_under_a_template_of_the_call(tiny_llm):
    output = tiny_llm.chat(
        [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}],
        SHORT,
        add_generation_prompt=False,
        continue_final_message=True,
        chat_template="{% for m in messages %}{{ m.content }}|{% endfor %}",
    )
    assert tiny_llm.processor.decode(output.prompt_token_ids) == "ab|c"
    with pytest.raises(ValueError, match="exclude each other"):
        tiny_llm.chat([{"role": "user", "content": "ab"}], SHORT, continue_final_message=True)
