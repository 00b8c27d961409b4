"""Rotary embedding of a GGUF file in the terms of a Hugging Face config."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float32

from headrace.engines.checkpoints.gguf_file import GgufFile
from headrace.engines.errors import ModelError

_DIVISORS = "rope_freqs.weight"
_LLAMA3_CONTEXTS = (8192, 4096, 16384, 32768)
"""Lengths of the first training that llama3 scaling may start from; every published model has the first."""
_LLAMA3_CORNERS = ((1.0, 4.0), (1.0, 2.0), (1.0, 8.0))
"""Pairs of low and high frequency factors; every published model has the first."""


def rope_config(file: GgufFile, own: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """rope_theta, rope_scaling and partial_rotary_factor of a config.json.

    `own` is the metadata below the architecture's name. Where the file has a tensor of divisors of each
    frequency, it is turned back into the llama3 parameters that give it, else given as it is under the key
    `rope_freq_factors`.

    Raises:
      ModelError: the kind of scaling is not known.
    """
    theta = own.get("rope.freq_base", 10000.0)
    rotary_dim = own.get("rope.dimension_count", head_dim)
    config: dict[str, Any] = {"rope_theta": theta, "rope_scaling": _scaling(file, own)}
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    if _DIVISORS in file.tensors:
        divisors = file.read(_DIVISORS).astype(np.float32).reshape(-1)
        if config["rope_scaling"] is not None:
            raise ModelError(
                f"{str(file.path)!r} has rope_freqs and rope.scaling at once, which is not understood"
            )
        llama3 = find_llama3_scaling(divisors, theta, rotary_dim)
        if llama3 is not None:
            config["rope_scaling"] = llama3
        elif not np.all(divisors == 1):
            config["rope_freq_factors"] = divisors.tolist()
    return config


def llama3_divisors(scaling: dict[str, Any], theta: float, rotary_dim: int) -> Float32[np.ndarray, " pairs"]:
    """What llama3 scaling divides each frequency by: 1 for short waves, `factor` for long ones."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = (scaling["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    share = np.clip(share, 0.0, 1.0)
    return (1.0 / ((1.0 - share) / scaling["factor"] + share)).astype(np.float32)


def find_llama3_scaling(
    divisors: Float32[np.ndarray, " pairs"], theta: float, rotary_dim: int
) -> dict[str, Any] | None:
    """The rope_scaling of kind llama3 whose divisors these are; None where there is none."""
    factor = float(divisors.max())
    if factor <= 1 or divisors.shape != (rotary_dim // 2,):
        return None
    for context in _LLAMA3_CONTEXTS:
        for low, high in _LLAMA3_CORNERS:
            scaling = {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
            if np.allclose(llama3_divisors(scaling, theta, rotary_dim), divisors, rtol=1e-4):
                return scaling
    return None


def _scaling(file: GgufFile, own: dict[str, Any]) -> dict[str, Any] | None:
    kind = own.get("rope.scaling.type", "linear" if "rope.scale_linear" in own else "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {
            "rope_type": "linear",
            "factor": own.get("rope.scaling.factor", own.get("rope.scale_linear", 1.0)),
        }
    if kind == "yarn":
        return _yarn(own)
    raise ModelError(f"{str(file.path)!r} has rope.scaling.type {kind!r}, wanted none, linear or yarn")


def _yarn(own: dict[str, Any]) -> dict[str, Any]:
    scaling = {"rope_type": "yarn", "factor": own.get("rope.scaling.factor", 1.0)}
    optional = {
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.attn_factor": "attention_factor",
        "rope.scaling.yarn_beta_fast": "beta_fast",
        "rope.scaling.yarn_beta_slow": "beta_slow",
    }
    return scaling | {name: own[key] for key, name in optional.items() if key in own}
