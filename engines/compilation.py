"""The persistent cache of compiled XLA programs."""

import logging
import os

import jax

from headrace.engines.cache import cache_home

logger = logging.getLogger(__name__)


def enable_compilation_cache() -> None:
    """Keeps compiled programs under the cache root, so that the next start does not compile them again.

    HEADRACE_XLA_CACHE=0 leaves it off. A directory that was set before (by JAX_COMPILATION_CACHE_DIR or in
    code) stays.
    """
    is_set = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if is_set or os.environ.get("HEADRACE_XLA_CACHE", "1") == "0":
        return
    directory = cache_home() / "xla"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("no cache of compiled programs: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
