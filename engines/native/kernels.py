"""Finds the built extension and makes its kernels known to XLA."""

import ctypes
import functools
import importlib.machinery
import logging
from pathlib import Path

import jax

logger = logging.getLogger(__name__)

PAGED_ATTENTION = "headrace_paged_attention"
"""Name of the custom call for `jax.ffi.ffi_call`."""


@functools.cache
def is_available() -> bool:
    """Whether the kernels are built and the default device is a CPU; registers them at the first call."""
    if jax.default_backend() != "cpu":
        return False
    library = _find_library()
    if library is None:
        logger.info("attention runs in plain XLA: the native kernels were not built")
        return False
    symbol = ctypes.CDLL(str(library)).HeadracePagedAttention
    jax.ffi.register_ffi_target(PAGED_ATTENTION, jax.ffi.pycapsule(symbol), platform="cpu")
    logger.info("attention runs in the native kernels")
    return True


def _find_library() -> Path | None:
    folder = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"_kernels{suffix}"
        if path.exists():
            return path
    return None
