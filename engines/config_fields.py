"""Configs made of configs, seen flat: one name space of options over all their parts.

e.g. a config with the fields `seed` and `cache`, itself a config of `page_size`, has the flat options
`seed` and `page_size`.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

ConfigT = TypeVar("ConfigT")


class FlatField(typing.NamedTuple):
    """One option of a config or of one of its parts."""

    owner: type
    """The dataclass that declares it."""
    field: dataclasses.Field
    kind: Any
    """Its resolved type."""


def flat_fields(config_class: type) -> list[FlatField]:
    """The options of a config dataclass, those of its parts in the place of the part, in order."""
    kinds = typing.get_type_hints(config_class)
    found: list[FlatField] = []
    for field in dataclasses.fields(config_class):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind):
            found.extend(flat_fields(typing.cast(type, kind)))
        else:
            found.append(FlatField(config_class, field, kind))
    return found


def from_flat(config_class: type[ConfigT], options: Mapping[str, Any]) -> ConfigT:
    """The config with these options, each given to the part that has it; a whole part may be given too.

    Raises:
      TypeError: no part has an option of such a name.
    """
    left = dict(options)
    config = _take(config_class, left)
    if left:
        raise TypeError(f"{config_class.__name__} has no option {next(iter(left))}")
    return config


def to_flat(config: Any) -> dict[str, Any]:
    """Every option of a config and its parts, by name."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found.update(to_flat(value) if dataclasses.is_dataclass(value) else {field.name: value})
    return found


def _take(config_class: type[ConfigT], left: dict[str, Any]) -> ConfigT:
    """A config of the options that are its own; takes them out of `left`."""
    kinds = typing.get_type_hints(config_class)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, config_class)):
        kind = kinds[field.name]
        if field.name in left:
            values[field.name] = left.pop(field.name)
        elif dataclasses.is_dataclass(kind):
            values[field.name] = _take(typing.cast(type, kind), left)
    return config_class(**values)
