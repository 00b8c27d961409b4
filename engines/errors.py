"""Errors of models, configurations, requests and engines, and the error that a row carries."""

from typing import NamedTuple

from headrace.audio import AudioError, HeadraceError


class ModelError(HeadraceError, ValueError):
    """A model spec or checkpoint that cannot be used: unknown, unreachable, truncated, unsupported."""


class ConfigError(HeadraceError, ValueError):
    """A configuration that cannot work."""


class RequestError(HeadraceError, ValueError):
    """One request that cannot be served; the others are not touched.

    `kind` is a short machine word for counters (`prompt_too_long`, `prompt_empty`, `template`, ...).
    """

    def __init__(self, message: str, *, kind: str = "request") -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self):
        return _rebuild, (str(self), self.kind)


class QueueFullError(HeadraceError, RuntimeError):
    """The driver's bounded queue stayed full for the whole time-out."""


class EngineError(HeadraceError, RuntimeError):
    """The engine itself has failed or was stopped: every request in flight gets it."""


class RowError(NamedTuple):
    """Why one row failed: `kind` goes to the counters, `message` (one line) to the row's `error` column."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: AudioError | RequestError) -> "RowError":
        return cls(error.kind, " ".join(str(error).split()))


def _rebuild(message: str, kind: str) -> RequestError:
    return RequestError(message, kind=kind)
