"""The real OpenAI client against a server over a tiny model."""

import json
import threading
import time

import httpx
import openai
import pytest

from headrace.engines.llm import SamplingParams

USER = [{"role": "user", "content": "hi"}]
ENDLESS = {"ignore_eos": True}


def test_chat_gives_the_engines_text_and_counts(client, served):
    answer = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=9, temperature=0, extra_body=ENDLESS
    )
    expected = served.app.models.text("tiny").chat(USER, SamplingParams(max_tokens=9, ignore_eos=True))
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 9
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids) == len("<user>hi")


def test_completions_take_texts_and_tokens_and_several_choices(client):
    asked = {"model": "tiny", "max_tokens": 5, "extra_body": ENDLESS}
    answer = client.completions.create(**asked, prompt=["ab", "cd"], n=3, temperature=1, seed=4)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len({choice.text for choice in answer.choices}) == 6
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 30)
    assert client.completions.create(**asked, prompt=[[66, 67, 68]]).usage.prompt_tokens == 3


def test_streams_hold_the_whole_text_and_the_usage(client):
    asked = {"model": "tiny", "messages": USER, "max_tokens": 40, "temperature": 0, "extra_body": ENDLESS}
    whole = client.chat.completions.create(**asked)
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options=usage))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 40
    assert len(chunks) > 3


def test_several_streamed_choices_do_not_mix(client):
    asked = {"model": "tiny", "prompt": "ab", "n": 3, "seed": 5, "max_tokens": 30, "extra_body": ENDLESS}
    whole = client.completions.create(**asked)
    texts = ["", "", ""]
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_stop_strings_and_biases_are_obeyed(client):
    asked = {"model": "tiny", "prompt": "ab", "max_tokens": 30, "temperature": 0, "extra_body": ENDLESS}
    text = client.completions.create(**asked).choices[0].text
    cut = client.completions.create(**asked, stop=[text[2:4]]).choices[0]
    assert (cut.text, cut.finish_reason) == (text[: text.index(text[2:4])], "stop")
    biased = client.completions.create(**asked, logit_bias={"100": 100}).choices[0].text
    assert len(set(biased)) == 1


def test_logprobs_are_returned_in_both_forms(client):
    asked = {"model": "tiny", "max_tokens": 4, "temperature": 0, "extra_body": ENDLESS}
    chat = client.chat.completions.create(**asked, messages=USER, logprobs=True, top_logprobs=3)
    content = chat.choices[0].logprobs.content
    assert [len(place.top_logprobs) for place in content] == [3] * 4
    for place in content:  # greedy: the chosen token is the most likely
        assert place.logprob == place.top_logprobs[0].logprob
    plain = client.completions.create(**asked, prompt="ab", logprobs=2).choices[0].logprobs
    assert len(plain.tokens) == len(plain.token_logprobs) == len(plain.text_offset) == 4


@pytest.mark.slow
def test_answers_follow_a_json_schema(client):
    schema = {
        "type": "object",
        "properties": {"sky": {"enum": ["blue", "grey"]}, "wet": {"type": "boolean"}},
        "required": ["sky", "wet"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}}
    asked = {"model": "tiny", "messages": USER, "max_tokens": 60, "n": 3, "response_format": form}
    answer = client.chat.completions.create(**asked)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        found = json.loads(choice.message.content)
        assert found["sky"] in ("blue", "grey")
        assert isinstance(found["wet"], bool)
    asked |= {"response_format": {"type": "json_object"}, "max_tokens": 12, "temperature": 0}
    assert client.chat.completions.create(**asked).choices[0].message.content.lstrip().startswith("{")


def test_tools_reach_the_template(client):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    asked = {"model": "tiny", "messages": USER, "max_tokens": 1}
    without = client.chat.completions.create(**asked).usage.prompt_tokens
    with_tool = client.chat.completions.create(**asked, tools=[tool]).usage.prompt_tokens
    assert with_tool == without + len("[weather]")


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"model": "other"}, openai.NotFoundError, "no model 'other'"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"best": 3}}, openai.BadRequestError, "best"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, openai.BadRequestError, "255"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"n": 0}, openai.BadRequestError, "n"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_in_openais_form(client, changes, error, text, stream):
    asked = {"model": "tiny", "messages": USER, "max_tokens": 3, "stream": stream} | changes
    with pytest.raises(error, match=text) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.body["type"] in ("invalid_request_error", "not_found_error")


def test_tokens_are_counted(served):
    for asked, count in [({"text": "abc"}, 3), ({"messages": USER}, len("<user>hi"))]:
        answer = httpx.post(f"{served.url}/v1/count_tokens", json={"model": "tiny", **asked})
        assert answer.json() == {"model": "tiny", "count": count}
    assert httpx.post(f"{served.url}/v1/count_tokens", json={"model": "tiny"}).status_code == 400


def test_a_client_that_leaves_frees_its_request(client, served):
    driver = served.app.models.text("tiny").driver
    asked = {"model": "tiny", "prompt": "ab", "max_tokens": 200, "extra_body": ENDLESS}
    with client.completions.create(**asked, n=8, stream=True) as stream:
        next(iter(stream))
    _wait_until_idle(driver)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(**asked, n=32)
    _wait_until_idle(driver)


def test_clients_at_once_each_get_their_own_text(client, served):
    llm = served.app.models.text("tiny")
    prompts = [f"prompt {index}" for index in range(24)]
    expected = [out.text for out in llm.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True))]
    texts = [""] * 24

    def ask(index: int) -> None:
        asked = {"prompt": prompts[index], "max_tokens": 20, "temperature": 0, "extra_body": ENDLESS}
        for chunk in client.completions.create(model="tiny", **asked, stream=True):
            texts[index] += chunk.choices[0].text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Batches of other sizes may differ in the last bits, and so, rarely, in a text.
    assert sum(text == own for text, own in zip(texts, expected, strict=True)) >= 23


def _wait_until_idle(driver) -> None:
    started_s = time.monotonic()
    while driver.get_total_concurrent_requests():
        assert time.monotonic() - started_s < 5.0
        time.sleep(0.01)
