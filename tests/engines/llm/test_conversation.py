"""Conversations in OpenAI's form, and what a template is given of them."""

import pytest

from headrace.engines import ConfigError, RequestError
from headrace.engines.llm import ChatOptions
from headrace.engines.llm.conversation import normalize_messages

TEMPLATE = (
    "{% for tool in tools or [] %}[tool {{ tool.function.name }}]{% endfor %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}({{ call.function.arguments.city }}){% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if shout %}!{% endif %}"
)
USER = {"role": "user", "content": "hi"}


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalize_messages([{"role": "user", "content": parts}], "")[0]["content"] == "a\nb"


def test_roles_that_the_template_lacks_get_a_stand_in_and_others_stay():
    messages = [{"role": role, "content": "x"} for role in ("developer", "function", "user", "critic")]
    roles = [message["role"] for message in normalize_messages(messages, "{{ system }}")]
    assert roles == ["system", "tool", "user", "critic"]
    roles = [message["role"] for message in normalize_messages(messages, "'developer' or 'function'")]
    assert roles == ["developer", "function", "user", "critic"]


def test_arguments_of_tool_calls_are_parsed():
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    normal = normalize_messages([message], "")[0]
    assert normal["content"] == ""
    assert normal["tool_calls"][0]["function"]["arguments"] == {"city": "Bern"}
    assert call["function"]["arguments"] == '{"city": "Bern"}'


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "non-empty list"),
        ("hi", "non-empty list"),
        ([{"content": "x"}], "role"),
        ([{"role": "user"}], "no content"),
        ([{"role": "user", "content": 3}], "not int"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "content part"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "tool call"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "not JSON",
        ),
    ],
)
def test_what_is_no_message_of_text_is_refused(messages, reason):
    with pytest.raises(RequestError, match=reason):
        normalize_messages(messages, "")


def test_an_answer_either_begins_or_goes_on():
    with pytest.raises(ConfigError, match="exclude each other"):
        ChatOptions(continue_final_message=True)


def render(llm, messages, **options) -> str:
    return llm._tokenizer.render_chat(messages, ChatOptions(chat_template=TEMPLATE, **options))


def test_the_options_of_a_conversation_reach_the_template(tiny_llm):
    tool = {"type": "function", "function": {"name": "weather"}}
    assert render(tiny_llm, [USER]) == "<user>hi<assistant>"
    assert render(tiny_llm, [USER], add_generation_prompt=False) == "<user>hi"
    assert render(tiny_llm, [USER], tools=(tool,)) == "[tool weather]<user>hi<assistant>"
    assert render(tiny_llm, [USER], template_kwargs={"shout": True}).endswith("!")


def test_the_last_message_is_gone_on_with(tiny_llm):
    messages = [USER, {"role": "assistant", "content": "Well, "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(tiny_llm, messages, **options) == "<user>hi<assistant>Well, "


def test_named_templates_are_chosen_by_name_and_by_tools(tiny_llm, monkeypatch):
    named = {"default": "plain", "tool_use": "with tools", "other": "another"}
    monkeypatch.setattr(tiny_llm._tokenizer._tokenizer, "chat_template", named)
    for options, text in [
        (ChatOptions(), "plain"),
        (ChatOptions(tools=({"type": "function"},)), "with tools"),
        (ChatOptions(chat_template="other"), "another"),
    ]:
        assert tiny_llm._tokenizer.render_chat([USER], options) == text
