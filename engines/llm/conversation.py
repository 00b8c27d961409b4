"""Conversations in OpenAI's form, made into what a model's chat template takes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engines.errors import ConfigError, RequestError
from headrace.engines.serialization import Serializable

Message = Mapping[str, Any]
"""{"role", "content", ...} as OpenAI's clients write it; content is a text or a list of text parts."""

STAND_IN_ROLES = {"developer": "system", "function": "tool"}
"""OpenAI's roles that most templates do not know, and what stands for them there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatOptions(Serializable):
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool = True
    """The prompt ends with the beginning of an answer."""
    continue_final_message: bool = False
    """The prompt ends in the middle of the last message, which the model goes on with."""
    chat_template: str | None = None
    """Jinja text, or the name of one of the model's templates; the model's own where None."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Tools in OpenAI's form ({"type": "function", "function": {...}}) that the template describes."""
    template_kwargs: Mapping[str, Any] | None = None
    """Further variables of the template, e.g. {"enable_thinking": False}."""

    def __post_init__(self) -> None:
        if self.add_generation_prompt and self.continue_final_message:
            raise ConfigError(
                "add_generation_prompt and continue_final_message exclude each other: an answer either "
                "begins anew or goes on with the last message"
            )


def normalize_messages(messages: Any, template: str) -> list[dict[str, Any]]:
    """The messages with plain-text contents, parsed tool arguments, and roles that the template knows.

    Raises:
      RequestError: they are no messages, or hold something that is not text.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a non-empty list of {role, content}", kind="template")
    return [_normalize(message, template) for message in messages]


def _normalize(message: Any, template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError("each message must be a mapping with a role and a content", kind="template")
    role = message["role"]
    if role in STAND_IN_ROLES and role not in template:
        role = STAND_IN_ROLES[role]
    normal = {**message, "role": role, "content": _text_of(message.get("content"))}
    if message.get("tool_calls"):
        normal["tool_calls"] = [_parse_arguments(call) for call in message["tool_calls"]]
    elif message.get("content") is None:
        raise RequestError(f"a message of role {message['role']!r} has no content", kind="template")
    return normal


def _text_of(content: Any) -> str:
    """The text of a content; parts are put on lines of their own."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list() | tuple():
            return "\n".join(map(_text_of_part, content))
    raise RequestError(f"a content is text or a list of parts, not {type(content).__name__}", kind="template")


def _text_of_part(part: Any) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)} if kind not in ("text", "refusal"):
            raise RequestError(f"a content part is of type {kind!r}: the model takes text", kind="template")
    raise RequestError('a content part must be {"type": "text", "text": ...}', kind="template")


def _parse_arguments(call: Any) -> dict[str, Any]:
    """A tool call with its arguments, JSON text in OpenAI's form, as the object that templates take."""
    match call:
        case {"function": {"arguments": str(text), **function}, **rest}:
            try:
                arguments = json.loads(text) if text else {}
            except ValueError as error:
                raise RequestError(
                    f"a tool call's arguments are not JSON: {error}", kind="template"
                ) from error
            return {**rest, "function": {**function, "arguments": arguments}}
        case {"function": {"name": str()}}:
            return dict(call)
    raise RequestError('a tool call must be {"function": {"name", "arguments"}}', kind="template")
