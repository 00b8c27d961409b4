"""The C library's allocator, where that is glibc: how much memory it keeps that nobody uses.

Threads get arenas of their own, up to eight a processor, and what is freed in one of them stays there for it.
An engine has tens of threads that decode audio or compile, and few that allocate at the same time.
"""

import ctypes
import functools
import os

MAX_ARENAS = 2
_M_ARENA_MAX = -8
"""glibc's malloc.h."""
_SETTINGS = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


@functools.cache
def limit_arenas() -> None:
    """Two arenas in this process, once and for all, where the environment says nothing of them."""
    libc = _glibc()
    if libc is not None and not any(name in os.environ for name in _SETTINGS):
        libc.mallopt(_M_ARENA_MAX, MAX_ARENAS)


def release_memory() -> None:
    """Gives what was freed back to the system, a compiler's memory say."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(ctypes.c_size_t(0))


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    if os.name != "posix":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
