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
LINEAR = "headrace_linear"
GREEDY_HEAD = "headrace_greedy_head"
ENCODER_ATTENTION = "headrace_encoder_attention"
PACK_FRAMES = "headrace_pack_frames"
CROSS_ATTENTION = "headrace_cross_attention"
SELF_ATTENTION = "headrace_self_attention"
RESERVE = "headrace_reserve"
DRAW = "headrace_draw"
CHOOSE_TOKEN = "headrace_choose_token"
EMBED = "headrace_embed"
ZEROS = "headrace_zeros"

KERNELS = 9
"""Version of the kernels' arguments: the same number stands in linear.cc."""

AVX2_LEVEL = 1
"""Below this instruction set XLA's own products are the faster ones."""
BFLOAT16_LEVEL = 3
"""From this one on CPUs multiply bfloat16; below it the kernels round to whole numbers."""

_SYMBOLS = {
    PAGED_ATTENTION: "HeadracePagedAttention",
    LINEAR: "HeadraceLinear",
    GREEDY_HEAD: "HeadraceGreedyHead",
    ENCODER_ATTENTION: "HeadraceEncoderAttention",
    PACK_FRAMES: "HeadracePackFrames",
    CROSS_ATTENTION: "HeadraceCrossAttention",
    SELF_ATTENTION: "HeadraceSelfAttention",
    RESERVE: "HeadraceReserve",
    DRAW: "HeadraceDraw",
    CHOOSE_TOKEN: "HeadraceChooseToken",
    EMBED: "HeadraceEmbed",
    ZEROS: "HeadraceZeros",
}

_AT_ANY_LEVEL = (PAGED_ATTENTION, RESERVE, DRAW, CHOOSE_TOKEN, ZEROS)


def is_available(kernel: str = PAGED_ATTENTION) -> bool:
    """Whether a kernel is built, and fast on the default device; makes those that are known to XLA."""
    return jax.default_backend() == "cpu" and kernel in _registered()


def multiplies_bfloat16(level: int) -> bool:
    """Whether the kernels of this instruction set, or of the machine's where that is lower, do so."""
    loaded = _load()
    return loaded is not None and min(level, loaded.HeadraceLevel()) >= BFLOAT16_LEVEL


@functools.cache
def _registered() -> frozenset[str]:
    """Names of the kernels in the extension that this machine is to run; XLA knows them from then on."""
    loaded = _load()
    if loaded is None:
        return frozenset()
    built = dict(_SYMBOLS)
    if loaded.HeadraceLevel() < AVX2_LEVEL:
        built = {name: symbol for name, symbol in built.items() if name in _AT_ANY_LEVEL}
    for name, symbol in built.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, symbol)), platform="cpu")
    logger.info("native kernels: %s", ", ".join(sorted(built)))
    return frozenset(built)


@functools.cache
def _load() -> ctypes.CDLL | None:
    library = _find_library()
    if library is None:
        logger.info("attention runs in plain XLA: the native kernels were not built")
        return None
    loaded = ctypes.CDLL(str(library))
    if not hasattr(loaded, "HeadraceKernels") or loaded.HeadraceKernels() != KERNELS:
        logger.warning("the native kernels are those of another version: install it again to build them anew")
        return None
    return loaded


def _find_library() -> Path | None:
    folder = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"_kernels{suffix}"
        if path.exists():
            return path
    return None
