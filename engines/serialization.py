"""Config classes to dicts and JSON and back, with every value checked against its field's type."""

import collections.abc
import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

from headrace.engines.errors import ConfigError

SerializableT = TypeVar("SerializableT", bound="Serializable")


class Serializable:
    """Gives a dataclass `to_dict`, `from_dict`, `to_json`, `from_json` and `replace`."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Every field, in values that JSON has: configs become dicts, tuples lists.

        Raises:
          ConfigError: a value, such as a function, has no such form.
        """
        return {name: _plain(getattr(self, name), name) for name in _types(type(self))}

    def to_json(self) -> str:
        """The fields as a JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls: type[SerializableT], values: Mapping[str, Any]) -> SerializableT:
        """The config with these fields, and the defaults of those that are not there.

        Raises:
          ConfigError: a key is no field, a value is not of its field's type, or a field without a default is
            missing.
          ValueError: the values do not go together (the class's own check, a ConfigError or RequestError).
        """
        kinds = _types(cls)
        for name in values:
            if name not in kinds:
                raise ConfigError(f"{cls.__name__} has no field {name!r}{_nearest(name, kinds)}")
        missing = [name for name in _required(cls) if name not in values]
        if missing:
            raise ConfigError(f"{cls.__name__} needs {', '.join(missing)}")
        read = {name: _read(value, kinds[name], f"{cls.__name__}.{name}") for name, value in values.items()}
        return cls(**read)

    @classmethod
    def from_json(cls: type[SerializableT], text: str | bytes) -> SerializableT:
        """The config of a JSON object, as `from_dict` reads it.

        Raises:
          ConfigError: also where the text is not JSON.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{cls.__name__} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{cls.__name__} is a JSON {type(values).__name__}, wanted an object")
        return cls.from_dict(values)

    def replace(self: SerializableT, **changes: Any) -> SerializableT:
        """The same config but for these fields.

        Raises:
          ConfigError: a name is no field.
        """
        kinds = _types(type(self))
        for name in changes:
            if name not in kinds:
                raise ConfigError(f"{type(self).__name__} has no field {name!r}{_nearest(name, kinds)}")
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType, reportReturnType]


def _plain(value: Any, name: str) -> Any:
    match value:
        case None | bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case Serializable():
            return value.to_dict()
        case Mapping():
            return {str(key): _plain(each, name) for key, each in value.items()}
        case collections.abc.Sequence() if not isinstance(value, bytes):
            return [_plain(each, name) for each in value]
    raise ConfigError(f"{name} is a {type(value).__name__}, which has no form in JSON")


def _read(value: Any, kind: Any, name: str) -> Any:
    """A value of the type `kind`; lists become tuples, dicts configs, whole numbers floats where wanted."""
    members = typing.get_args(kind) if _is_union(kind) else (kind,)
    for member in members:
        if _fits(value, member):
            return _convert(value, member, name)
    raise ConfigError(f"{name} is {_shown(value)}, wanted {' or '.join(map(_name, members))}")


def _is_union(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, its parts aside."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return True
    if kind is None or kind is type(None):
        return value is None
    if origin is Literal:
        return value in typing.get_args(kind)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is int or kind is float:
        return isinstance(value, Integral if kind is int else Real)
    origin = origin or kind
    if origin in (tuple, collections.abc.Sequence):
        return isinstance(value, collections.abc.Sequence) and not isinstance(value, str | bytes)
    if isinstance(origin, type) and issubclass(origin, Serializable):
        return isinstance(value, origin | Mapping)
    return isinstance(origin, type) and isinstance(value, origin)


def _convert(value: Any, kind: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind in (int, float):
        return kind(value)
    if origin in (tuple, collections.abc.Sequence) and arguments:
        if origin is tuple and arguments[-1] is not Ellipsis:
            if len(value) != len(arguments):
                raise ConfigError(f"{name} has {len(value)} values, wanted {len(arguments)}")
            return tuple(_read(each, item, name) for each, item in zip(value, arguments, strict=True))
        return tuple(_read(each, arguments[0], name) for each in value)
    if origin is collections.abc.Mapping and arguments:
        key_kind, value_kind = arguments
        return {_read_key(key, key_kind, name): _read(each, value_kind, name) for key, each in value.items()}
    if isinstance(origin, type) and issubclass(origin, Serializable) and isinstance(value, Mapping):
        return origin.from_dict(value)
    return value


def _read_key(key: Any, kind: Any, name: str) -> Any:
    """A mapping's key: JSON has none but text, so that a whole number may come as its digits."""
    if kind is int and isinstance(key, str) and key.lstrip("-").isdecimal():
        return int(key)
    return _read(key, kind, name)


def _types(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}  # pyright: ignore[reportArgumentType]


def _required(cls: type) -> list[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    return [each.name for each in fields if each.default is missing and each.default_factory is missing]


def _nearest(name: Any, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f": did you mean {close[0]}?" if close else f": it has {', '.join(known)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return ", ".join(map(repr, typing.get_args(kind)))
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))
