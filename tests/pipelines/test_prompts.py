"""Prompts come from columns, messages or templates; what is missing is the row's own error."""

from datetime import date
from decimal import Decimal

import pytest

from headrace.engines import RequestError
from headrace.pipelines.errors import InputError
from headrace.pipelines.prompts import fill_template, read_prompt, template_fields


def test_a_template_is_filled_from_the_columns_of_the_row():
    template = "Sum {{up}} {title}: {n} {title}"
    assert template_fields(template) == ("title", "n")
    prompt = fill_template(template, {"title": "{x}", "n": 3})
    assert prompt.content == prompt.shown == "Sum {up} {x}: 3 {x}"


def test_dates_and_decimals_stand_in_a_prompt_as_they_are_and_lists_as_json():
    values = {"day": date(2024, 2, 29), "price": Decimal("1.50"), "tags": ["a"], "raw": b"caf\xc3\xa9"}
    assert fill_template("{day} {price} {tags} {raw}", values).content == '2024-02-29 1.50 ["a"] café'


@pytest.mark.parametrize("template", ["{", "}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{}", "no field", ""])
def test_a_template_that_is_more_than_columns_is_refused(template: str):
    with pytest.raises(InputError, match="template"):
        template_fields(template)


def test_messages_lose_their_empty_fields_and_are_shown_as_json():
    messages = [{"role": "user", "content": "hé", "name": None}]
    prompt = read_prompt("messages", {"messages": messages})
    assert prompt.content == [{"role": "user", "content": "hé"}]
    assert prompt.shown == '[{"role": "user", "content": "hé"}]'


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "missing_value"),
        ({"p": None}, "missing_value"),
        ({"p": 3}, "prompt_type"),
        ({"p": []}, "prompt_type"),
        ({"p": ["text"]}, "prompt_type"),
    ],
)
def test_a_prompt_that_is_not_there_is_a_row_error(values: dict, kind: str):
    with pytest.raises(RequestError) as caught:
        read_prompt("p", values)
    assert caught.value.kind == kind
    if kind == "missing_value":
        with pytest.raises(RequestError):
            fill_template("a {p}", values)
