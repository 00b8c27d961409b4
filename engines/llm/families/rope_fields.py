"""Rotary embeddings of a `config.json`."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.engines.errors import ModelError
from headrace.engines.llm.config import RopeConfig
from headrace.engines.llm.families.fields import Fields

ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope")
_SAME_NAME = ("factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow")


def read_rope(
    fields: Fields,
    head_dim: int,
    *,
    theta: float = 10_000.0,
    kind_names: Mapping[str, str] = MappingProxyType({}),
) -> RopeConfig:
    """The one rope of a model.

    Reads the older fields (rope_theta, rope_scaling) and the newer one (rope_parameters). `theta` is the
    family's default, `kind_names` are other names that it has for the kinds of scaling.

    Raises:
      ModelError: the kind of scaling, or one of its parameters, is not understood.
    """
    parameters = dict(fields.get("rope_parameters", {})) | dict(fields.get("rope_scaling", {}))
    for name in ("rope_type", "type"):
        if name in parameters:
            parameters[name] = kind_names.get(parameters[name], parameters[name])
    return make_rope(fields, parameters, head_dim, theta=theta)


def make_rope(fields: Fields, parameters: Mapping[str, Any], head_dim: int, *, theta: float) -> RopeConfig:
    """A rope from its parameters and, where they lack something, from the fields beside them."""
    own = {name: value for name, value in parameters.items() if value is not None}
    kind = str(own.pop("rope_type", own.pop("type", "default")))
    own.pop("type", None)
    if kind not in ROPE_KINDS:
        raise ModelError(f"rope scaling {kind!r} is not supported: {', '.join(ROPE_KINDS)} are")
    theta = float(own.pop("rope_theta", fields.get("rope_theta", theta)))
    share = float(own.pop("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0)))
    max_position = fields.get("max_position_embeddings", 2048)
    beside = fields.get("original_max_position_embeddings")
    original = int(beside or own.pop("original_max_position_embeddings", max_position))
    own.pop("original_max_position_embeddings", None)
    given: dict[str, Any] = {"rotary_dim": int(head_dim * share) if share != 1.0 else None}
    if kind in ("llama3", "yarn", "longrope"):
        given["original_max_position"] = original
    if kind == "yarn":
        given |= _read_yarn(own, max_position / original)
    if kind == "longrope":
        given |= _read_longrope(own, max_position / original, original)
    given |= {name: float(own.pop(name)) for name in _SAME_NAME if name in own}
    if own:
        raise ModelError(
            f"the model's rope scaling sets {next(iter(own))}, which headrace does not understand"
        )
    divisors = fields.get("rope_freq_factors")  # as GGUF files store them
    if divisors is not None:
        given["frequency_divisors"] = tuple(float(value) for value in divisors)
    return RopeConfig(theta=theta, kind=kind, **given)  # pyright: ignore[reportArgumentType]


def _read_yarn(own: dict[str, Any], stretch: float) -> dict[str, Any]:
    """Takes the parameters that only yarn has out of `own`."""
    factor = float(own.pop("factor", stretch))
    mscale, mscale_all_dim = own.pop("mscale", None), own.pop("mscale_all_dim", None)

    def attention_factor(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    # Both or none: DeepSeek divides one by the other, everybody else takes the paper's.
    whole = attention_factor(1.0)
    if mscale and mscale_all_dim:
        whole = attention_factor(float(mscale)) / attention_factor(float(mscale_all_dim))
    rounds_ramp = bool(own.pop("truncate", True))
    return {"factor": factor, "attention_factor": whole, "rounds_ramp": rounds_ramp}


def _read_longrope(own: dict[str, Any], stretch: float, original: int) -> dict[str, Any]:
    """Takes the parameters that only longrope has out of `own`."""
    factor = float(own.pop("factor", stretch))
    whole = 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original))
    found: dict[str, Any] = {"attention_factor": whole}
    for ours, theirs in (("short_factors", "short_factor"), ("long_factors", "long_factor")):
        if theirs not in own:
            raise ModelError(f"the model's rope scaling longrope has no {theirs}")
        found[ours] = tuple(float(value) for value in own.pop(theirs))
    return found
