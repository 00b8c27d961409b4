"""Prompts of rows: a column of text or of chat messages, or a template that is filled from columns."""

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.engines import RequestError
from headrace.pipelines.errors import InputError
from headrace.pipelines.work import as_text

Messages = list[dict[str, Any]]


class Prompt(NamedTuple):
    """What the engine is given, and the text of it that the results show."""

    content: str | Messages
    shown: str


def template_fields(template: str) -> tuple[str, ...]:
    """The columns that a template names, each once.

    Raises:
      InputError: a brace is unpaired, or a field is more than a column's name.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"the template is wrong ({error}): write {{{{ and }}}} for braces") from error
    names = []
    for _, name, specification, conversion in parsed:
        if name is None:
            continue
        if not name or specification or conversion or not name.replace("_", "").replace("-", "").isalnum():
            raise InputError(
                "a field of the template is not {column}: only names of columns may stand in braces"
            )
        names.append(name)
    if not names:
        raise InputError("the template has no {column} field: every prompt would be the same")
    return tuple(dict.fromkeys(names))


def fill_template(template: str, values: Mapping[str, Any]) -> Prompt:
    """The prompt of one row.

    Raises:
      RequestError: the row lacks a value for a field.
    """
    filled = []
    for text, name, _, _ in string.Formatter().parse(template):
        filled.append(text)
        if name is not None:
            filled.append(as_text(_value(values, name)))
    prompt = "".join(filled)
    return Prompt(prompt, prompt)


def read_prompt(column: str, values: Mapping[str, Any]) -> Prompt:
    """The prompt of one row: text, or chat messages, whose JSON is then shown.

    Raises:
      RequestError: the value is missing, or is neither.
    """
    value = _value(values, column)
    if isinstance(value, str):
        return Prompt(value, value)
    if isinstance(value, Sequence) and value and all(isinstance(each, Mapping) for each in value):
        # A column of structs gives every message every field, null where it was not set.
        messages = [{name: part for name, part in each.items() if part is not None} for each in value]
        return Prompt(messages, json.dumps(messages, ensure_ascii=False, default=str))
    kind = type(value).__name__ if value != [] else "list that is empty"
    raise RequestError(
        f"column {column!r} is a {kind}: text or a list of messages is wanted", kind="prompt_type"
    )


def _value(values: Mapping[str, Any], column: str) -> Any:
    if column not in values:
        raise RequestError(f"the row has no {column!r}", kind="missing_value")
    if values[column] is None:
        raise RequestError(f"column {column!r} is null", kind="missing_value")
    return values[column]
