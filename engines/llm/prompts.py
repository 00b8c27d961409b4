"""The forms in which prompts and their parameters are given, told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np

from headrace.engines.errors import ConfigError, RequestError
from headrace.engines.llm.conversation import ChatOptions, Message
from headrace.engines.llm.request import OutputKind
from headrace.engines.llm.sampling_params import SamplingParams
from headrace.engines.serialization import Serializable

Prompt = str | Sequence[int] | Sequence[Message] | Mapping[str, Any]
"""A text, token ids, the messages of a conversation, {"prompt": text} or {"prompt_token_ids": ids}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeOptions(Serializable):
    """How a plain text becomes tokens, in the names of Hugging Face tokenizers (`tokenizer_kwargs`)."""

    add_special_tokens: bool | None = None
    """Begin a text as the model's tokenizer begins texts; None: yes, but not after a chat template."""
    truncation: bool = False
    """Cut a prompt that is longer than max_length."""
    max_length: int | None = None
    """Most tokens of a prompt that is cut."""
    truncation_side: str = "right"
    """Which end is cut off: left or right."""

    def __post_init__(self) -> None:
        if self.truncation_side not in ("left", "right"):
            raise ConfigError(f"truncation_side is {self.truncation_side!r}: left or right")
        if self.truncation != (self.max_length is not None):
            raise ConfigError("truncation and max_length go together: give both or neither")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"max_length is {self.max_length}, wanted at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRequest:
    """One prompt with everything about how it is to be answered."""

    prompt: Prompt
    """Text, token ids or messages."""
    params: SamplingParams = field(default_factory=SamplingParams)
    """How to decode it."""
    request_id: str | None = None
    """Name that the output carries, unique among the requests in flight; chosen where None."""
    chat: ChatOptions | None = None
    """Makes a text the user's turn of a conversation; for messages, how the template renders them."""
    system: str | None = None
    """System message before a conversation that has none."""
    encode: EncodeOptions = field(default_factory=EncodeOptions)
    """How a text becomes tokens."""
    output_kind: OutputKind = "final"
    """Whether outputs come while the text grows, and what they hold."""
    priority: int = 0
    """Requests of a lower number go first, where the engine's policy is `priority`."""
    metadata: Mapping[str, Any] | None = None
    """Whatever the caller wants to find in the output again."""


def list_prompts(prompts: Any) -> tuple[list[Any], bool]:
    """The prompts one by one, and whether they were given as one that is not in a list.

    A batch may also be a 2-dimensional array or, as Hugging Face tokenizers give it, {"input_ids",
    "attention_mask"}: tokens whose mask is 0 are padding.
    """
    if isinstance(prompts, Mapping) and "input_ids" in prompts:
        return _unpad(prompts)
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Sequence):
        return [prompts], True
    if len(prompts) > 0 and all(isinstance(each, Integral) or _is_message(each) for each in prompts):
        return [prompts], True
    return list(prompts), False


def list_params(params: Any, count: int) -> list[SamplingParams]:
    """Parameters for each of `count` prompts: None, one for all, or a list of as many; dicts are read.

    Raises:
      TypeError: they are neither SamplingParams nor dicts.
      ValueError: there are more or fewer than prompts, or a dict's values are wrong.
    """
    if params is None or isinstance(params, SamplingParams | Mapping):
        return [_read_params(params)] * count
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise TypeError(f"sampling params are SamplingParams, a dict or a list, not {type(params).__name__}")
    if len(params) != count:
        raise ValueError(f"{count} prompts and {len(params)} sampling params: give one each, or one")
    return [_read_params(each) for each in params]


def _read_params(params: Any) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if isinstance(params, Mapping):
        return SamplingParams.from_dict(params)
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling params are SamplingParams, a dict or None, not {type(params).__name__}")
    return params


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and not {"prompt", "prompt_token_ids"} & item.keys()


def _unpad(batch: Mapping[str, Any]) -> tuple[list[Any], bool]:
    unknown = batch.keys() - {"input_ids", "attention_mask", "token_type_ids", "special_tokens_mask"}
    if unknown:
        raise ConfigError(f"a tokenized batch has the unknown part {sorted(unknown)[0]!r}")
    rows, masks = batch["input_ids"], batch.get("attention_mask")
    is_one = len(rows) > 0 and isinstance(rows[0], Integral)
    rows = [rows] if is_one else list(rows)
    if masks is None:
        return [[int(token) for token in row] for row in rows], is_one
    masks = [masks] if is_one else list(masks)
    if [len(row) for row in rows] != [len(mask) for mask in masks]:
        raise RequestError("attention_mask is not of the shape of input_ids", kind="prompt_type")
    return [
        [int(token) for token, kept in zip(row, mask, strict=True) if kept]
        for row, mask in zip(rows, masks, strict=True)
    ], is_one
