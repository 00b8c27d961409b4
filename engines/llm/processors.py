"""Logits processors: the user's own functions, named by import path."""

import functools
import importlib
from collections.abc import Callable

import numpy as np

from headrace.engines.errors import RequestError

LogitsProcessor = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(prompt ids [P], output ids [O], logits [V]) to logits [V]; int32, int32, float32."""


@functools.cache
def load_processor(path: str) -> LogitsProcessor:
    """The function that `package.module:name` names.

    Raises:
      RequestError: there is no such module or function.
    """
    module_name, _, name = path.partition(":")
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module_name))
    except (ImportError, AttributeError, ValueError) as error:
        raise RequestError(f"logits processor {path!r} cannot be imported: {error}", kind="params") from error
    if not callable(found):
        raise RequestError(
            f"logits processor {path!r} is {type(found).__name__}, wanted a function", kind="params"
        )
    return found  # pyright: ignore[reportReturnType]


def process_logits(
    processors: tuple[LogitsProcessor, ...], prompt: np.ndarray, outputs: np.ndarray, logits: np.ndarray
) -> np.ndarray:
    """The logits of one row after its processors, in order; they may write into what they are given.

    Raises:
      RequestError: one of them raised, or gave back something else than logits of which one is finite.
    """
    for processor in processors:
        name = getattr(processor, "__qualname__", repr(processor))
        try:
            changed = np.asarray(processor(prompt, outputs, logits), np.float32)
        except Exception as error:
            # Whatever a user's function raises is the fault of its row, not of the engine.
            raise RequestError(
                f"logits processor {name} raised {type(error).__name__}: {error}", kind="processor"
            ) from error
        if changed.shape != logits.shape:
            raise RequestError(
                f"logits processor {name} gave shape {changed.shape}, wanted {logits.shape}", kind="processor"
            )
        if np.isnan(changed).any() or not (changed > -np.inf).any():
            raise RequestError(
                f"logits processor {name} gave NaN, or left no token: nothing can be chosen", kind="processor"
            )
        logits = changed
    return logits
