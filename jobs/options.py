"""Command-line options made from the fields of a frozen config dataclass, and their values read back."""

import argparse
import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from headrace.jobs.errors import UsageError

RENAMED = {
    "with_columns": "with",
    "method": "speculative-method",
    "disable_by_batch_size": "speculative-disable-by-batch-size",
    "measure_every": "speculative-measure-every",
}
"""Fields whose option has another name: a Python keyword, or one that says too little without its config."""
REPEATED = frozenset({"stop", "bad_words", "guided_choice"})
"""Tuple fields given once a value instead of as a comma list: their values may hold commas."""
FILES = frozenset({"json_schema", "guided_grammar", "chat_template"})
"""Text fields for which the command line names a file that holds the text."""
POSITIONAL = "inputs"
"""The field that takes the arguments without a dash."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of printing its usage and leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def add_options(parser: argparse.ArgumentParser, config_class: type) -> None:
    """Gives `parser` one option a field of `config_class` or its parts; those not given stay absent."""
    from headrace.engines.config_fields import flat_fields  # loads JAX, which `headrace --help` need not

    for owner, field, kind in flat_fields(config_class):
        text = _help(field_docstrings(owner).get(field.name, ""), field)
        if field.name == POSITIONAL:
            nargs = "+" if _is_required(field) else "*"
            parser.add_argument(field.name, nargs=nargs, metavar="INPUT", help=text)
        else:
            parser.add_argument(
                option_name(field.name),
                dest=field.name,
                required=_is_required(field),
                default=argparse.SUPPRESS,
                help=text,
                **_value_arguments(field, kind),
            )


def config_values(parsed: argparse.Namespace, config_class: type) -> dict[str, Any]:
    """The options of `config_class` that the command line gave."""
    from headrace.engines.config_fields import flat_fields

    given = vars(parsed)
    names = [each.field.name for each in flat_fields(config_class)]
    values = {name: given[name] for name in names if name in given}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def option_name(field_name: str) -> str:
    return "--" + RENAMED.get(field_name, field_name).replace("_", "-")


def option_names(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every option that `parser` knows, `--x` and `-x` alike, with its action."""
    return {name: action for action in parser._actions for name in action.option_strings}


def field_docstrings(config_class: type) -> Mapping[str, str]:
    """The docstring under each field of a dataclass and of the dataclasses that it extends, by field name."""
    found: dict[str, str] = {}
    for cls in reversed(config_class.__mro__):
        if dataclasses.is_dataclass(cls):
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
            assert isinstance(tree, ast.ClassDef)
            found.update(_docstrings_of(tree.body))
    return found


def _docstrings_of(statements: list[ast.stmt]) -> Iterable[tuple[str, str]]:
    for pair in itertools.pairwise(statements):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _help(text: str, field: dataclasses.Field) -> str:
    default = field.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        value = default if isinstance(default, str) else f"{default:g}"
        plain = text.removesuffix(".")
        text = f"{plain[:-1]}; default {value})." if plain.endswith(")") else f"{plain} (default: {value})."
    return text.replace("%", "%%")


def _value_arguments(field: dataclasses.Field, kind: Any) -> dict[str, Any]:
    """The arguments of add_argument that say how the option's value is read."""
    choices = [member for member in _members(kind) if member is not type(None)]
    metavar = field.name.upper()
    if field.name in FILES:
        return {"type": _file_text, "metavar": "FILE"}
    if choices == [bool]:
        return {"action": argparse.BooleanOptionalAction if field.default is True else "store_true"}
    if all(typing.get_origin(member) is Literal for member in choices):
        return {"choices": [value for member in choices for value in typing.get_args(member)]}
    if len(choices) == 1 and typing.get_origin(choices[0]) is tuple:
        item = typing.get_args(choices[0])[0]
        if field.name in REPEATED:
            return {"action": "append", "type": item, "metavar": metavar}
        return {"type": _comma_list(item), "metavar": "A,B"}
    if any(typing.get_origin(member) is tuple for member in choices):
        return {"type": _number_or_pair, "metavar": "S or LEFT,RIGHT"}
    return {"type": _scalar(choices), "metavar": metavar}


def _members(kind: Any) -> tuple[Any, ...]:
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    return typing.get_args(kind) if is_union else (kind,)


def _scalar(choices: list[Any]) -> Callable[[str], Any]:
    scalars = [member for member in (int, float, str) if member in choices]
    assert scalars, f"no command-line form for {choices}"
    return scalars[0]


def _comma_list(item: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def read(text: str) -> tuple[Any, ...]:
        try:
            return tuple(item(part.strip()) for part in text.split(",") if part.strip())
        except ValueError:
            name = getattr(item, "__name__", "value")
            raise argparse.ArgumentTypeError(f"not a comma list of {name} values: {text!r}") from None

    return read


def _file_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot be read: {path}: {error}") from None


def _number_or_pair(text: str) -> float | tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2):
        raise argparse.ArgumentTypeError(f"neither a number nor two with a comma between them: {text!r}")
    return numbers[0] if len(numbers) == 1 else numbers
