"""What sampling parameters cannot be: wrong types, values out of range, pairs that cannot work together."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from headrace.engines.errors import RequestError

Params = Any
"""SamplingParams, whose module imports this one."""
MAX_TOP_LOGPROBS = 128
"""Most likely tokens of a step that the device can report."""
MAX_BEAMS = 32
MAX_PENALTY = 2.0


def check_types(params: Params) -> None:
    """What is not a number or a text must not reach the engine's thread, which serves other rows too."""
    for name in ("n", "max_tokens", "min_tokens", "top_k"):
        _require_type(name, getattr(params, name), Integral, "an integer")
    for name in ("best_of", "seed", "logprobs", "prompt_logprobs", "beam_width"):
        _require_type(name, getattr(params, name), Integral | None, "an integer or None")
    for name in ("temperature", "top_p", "min_p", "length_penalty"):
        _require_type(name, getattr(params, name), Real, "a number")
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        _require_type(name, getattr(params, name), Real, "a number")
    for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "use_beam_search"):
        _require_type(name, getattr(params, name), bool, "True or False")
    if params.early_stopping not in (True, False, "never"):
        raise _refusal(f"early_stopping is {params.early_stopping!r}, wanted True, False or 'never'")
    for name in ("guided_json", "guided_regex", "guided_grammar"):
        _require_type(name, getattr(params, name), str | None, "a text or None")
    for name in ("stop", "bad_words", "guided_choice", "logits_processors"):
        _require_items(name, getattr(params, name), str, "texts")
    for name in ("stop_token_ids", "suppress_tokens"):
        _require_items(name, getattr(params, name), Integral, "integers")
    if params.allowed_token_ids is not None:
        _require_items("allowed_token_ids", params.allowed_token_ids, Integral, "integers")
    _require_type("logit_bias", params.logit_bias, Mapping | None, "a mapping of token ids to numbers")
    _require_items("logit_bias", tuple(params.logit_bias or ()), Integral, "token ids")
    _require_items("logit_bias", tuple((params.logit_bias or {}).values()), Real, "numbers")


def check_ranges(params: Params) -> None:
    """Each value alone."""
    _check_counts(params)
    _check_shares(params)
    _check_tokens_and_texts(params)


def check_combinations(params: Params) -> None:
    """Values that are right alone and cannot work together."""
    if params.use_beam_search:
        _check_beam_search(params)
    else:
        _check_samples(params)
    _check_guide(params)
    if params.allowed_token_ids is not None and not {*params.allowed_token_ids} - {*params.suppress_tokens}:
        raise _refusal("suppress_tokens leaves none of allowed_token_ids: no token could be made")


def _check_counts(params: Params) -> None:
    for name in ("n", "max_tokens", "best_of", "beam_width"):
        value = getattr(params, name)
        if value is not None and value < 1:
            raise _refusal(f"{name} is {value}, wanted at least 1")
    if not 0 <= params.min_tokens <= params.max_tokens:
        raise _refusal(f"min_tokens is {params.min_tokens}, wanted 0 to max_tokens ({params.max_tokens})")
    if params.top_k < -1:
        raise _refusal(f"top_k is {params.top_k}, wanted -1 or 0 (off) or a count")
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and not 0 <= value <= MAX_TOP_LOGPROBS:
            raise _refusal(f"{name} is {value}, wanted 0 to {MAX_TOP_LOGPROBS}, or None for none")
    if params.best_of is not None and params.best_of < params.n:
        raise _refusal(f"best_of is {params.best_of} and n is {params.n}: best_of cannot be less than n")


def _check_shares(params: Params) -> None:
    if not 0.0 <= params.temperature < math.inf:
        raise _refusal(f"temperature is {params.temperature}, wanted a finite number, 0 or more")
    if not 0.0 < params.top_p <= 1.0:
        raise _refusal(f"top_p is {params.top_p}, wanted a share in (0, 1]")
    if not 0.0 <= params.min_p <= 1.0:
        raise _refusal(f"min_p is {params.min_p}, wanted a share in [0, 1]")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -MAX_PENALTY <= getattr(params, name) <= MAX_PENALTY:
            raise _refusal(f"{name} is {getattr(params, name)}, wanted -2 to 2")
    if not 0.0 < params.repetition_penalty < math.inf:
        raise _refusal(f"repetition_penalty is {params.repetition_penalty}, wanted more than 0; 1 is off")
    if not math.isfinite(params.length_penalty):
        raise _refusal(f"length_penalty is {params.length_penalty}, wanted a finite number")


def _check_tokens_and_texts(params: Params) -> None:
    for name in ("stop_token_ids", "suppress_tokens", "allowed_token_ids", "logit_bias"):
        if min(getattr(params, name) or (0,)) < 0:
            raise _refusal(f"a token id of {name} is negative: token ids begin at 0")
    for token, bias in (params.logit_bias or {}).items():
        if not math.isfinite(bias):
            raise _refusal(
                f"logit_bias of token {token} is {bias}, wanted a finite number: suppress_tokens bars"
            )
    if any(not text for text in params.stop):
        raise _refusal("a stop string is empty: it would end every text at once")
    for name in ("bad_words", "guided_choice", "logits_processors"):
        if any(not text for text in getattr(params, name)):
            raise _refusal(f"{name} has an empty text: leave it out")
    for path in params.logits_processors:
        if ":" not in path:
            raise _refusal(f"logits processor {path!r} is no import path: wanted package.module:name")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise _refusal("allowed_token_ids is empty: no token could be made; None allows all")


def _check_samples(params: Params) -> None:
    if params.num_samples > 1 and params.is_greedy:
        raise _refusal(
            f"{params.num_samples} texts at temperature 0 would all be the same: "
            "raise temperature or set use_beam_search"
        )
    for name, default in (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False)):
        if getattr(params, name) != default:
            raise _refusal(f"{name} is for beam search: set use_beam_search, or leave it out")


def _check_beam_search(params: Params) -> None:
    if params.num_beams == 0:
        raise _refusal("use_beam_search wants to know how many beams: set beam_width")
    if params.beam_width is not None and params.best_of not in (None, params.beam_width):
        raise _refusal("beam_width and best_of both say how many beams and differ: give one of them")
    if not params.n <= params.num_beams <= MAX_BEAMS:
        raise _refusal(f"{params.num_beams} beams for n = {params.n}: wanted n to {MAX_BEAMS}")
    if not params.is_greedy or params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0:
        raise _refusal(
            "a beam search draws nothing: leave temperature, top_k, top_p and min_p at their defaults"
        )
    for name, default in _LOGIT_CHANGES.items():
        if getattr(params, name) != default:
            raise _refusal(f"{name} changes the probabilities that a beam search ranks by: give one of both")


def _check_guide(params: Params) -> None:
    guides = {
        "guided_json": params.guided_json is not None,
        "guided_regex": params.guided_regex is not None,
        "guided_choice": bool(params.guided_choice),
        "guided_grammar": params.guided_grammar is not None,
    }
    given = [name for name, is_given in guides.items() if is_given]
    if len(given) > 1:
        raise _refusal(f"{' and '.join(given)} exclude each other: give one of them")
    if not given:
        return
    bars = {
        "ignore_eos": params.ignore_eos,
        "min_tokens": params.min_tokens > 0,
        "suppress_tokens": bool(params.suppress_tokens),
        "bad_words": bool(params.bad_words),
        "allowed_token_ids": params.allowed_token_ids is not None,
    }
    for name, is_given in bars.items():
        if is_given:
            raise _refusal(
                f"{name} may bar the only token that {given[0]} leaves, which would be a dead end: "
                "give one of both"
            )


_LOGIT_CHANGES: dict[str, Any] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "suppress_tokens": (),
    "allowed_token_ids": None,
    "bad_words": (),
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": (),
    "guided_grammar": None,
    "logits_processors": (),
}
"""Fields that change logits, and the values that do not."""


def _require_type(name: str, value: Any, kind: Any, wanted: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _refusal(f"{name} is {type(value).__name__}, wanted {wanted}")


def _require_items(name: str, values: Any, kind: Any, wanted: str) -> None:
    if not isinstance(values, tuple):
        raise _refusal(f"{name} is {type(values).__name__}, wanted a list of {wanted}")
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _refusal(f"{name} holds {type(value).__name__}, wanted {wanted}")


def _refusal(message: str) -> RequestError:
    return RequestError(message, kind="params")
