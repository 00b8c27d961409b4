"""The persistent cache of compiled programs."""

import logging
import os

import jax
from jax.experimental.compilation_cache import compilation_cache

from headrace.engines.cache import cache_home
from headrace.engines.compilation_config import AUTO

logger = logging.getLogger(__name__)


def enable_compilation_cache(cache_dir: str | None = AUTO) -> None:
    """Keeps compiled programs in a directory, so that the next start does not compile them again.

    `auto` is a directory under the cache's root, unless one was set before (by JAX_COMPILATION_CACHE_DIR or
    in code) or HEADRACE_XLA_CACHE=0; None or "none" turns the cache off. There is one cache in a process:
    the engine that was made last decides.
    """
    current = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if cache_dir is None or cache_dir == "none":
        _use_directory(current, None)
        return
    if cache_dir == AUTO:
        if current or os.environ.get("HEADRACE_XLA_CACHE", "1") == "0":
            return
        cache_dir = str(cache_home() / "xla")
    try:
        os.makedirs(cache_dir, exist_ok=True)
    except OSError as error:
        logger.warning("no cache of compiled programs: %s", error)
        return
    _use_directory(current, cache_dir)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _use_directory(current: str | None, wanted: str | None) -> None:
    if current != wanted:
        jax.config.update("jax_compilation_cache_dir", wanted)
        compilation_cache.reset_cache()  # JAX looks at the setting once
