"""Outputs of the engine in OpenAI's JSON."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.engines.llm import RequestOutput


class Piece(NamedTuple):
    """New text of one choice."""

    index: int
    output: RequestOutput


@dataclass(kw_only=True, slots=True)
class Choice:
    """One text of an answer while it grows."""

    text: list[str] = field(default_factory=list)
    places: list[Mapping[int, Any]] = field(default_factory=list)
    """Log-probabilities at each token, where they are asked for."""
    num_tokens: int = 0
    num_prompt: int = 0
    num_cached: int = 0
    finish_reason: str | None = None

    def add(self, output: RequestOutput) -> None:
        completion = output.outputs[0]
        self.text.append(completion.text)
        self.places.extend(completion.logprobs or ())
        self.num_tokens += len(completion.token_ids)
        self.num_prompt, self.num_cached = len(output.prompt_token_ids), output.cached_tokens
        self.finish_reason = completion.finish_reason


class Answer:
    """The answer to one call: chat (`is_chat`) or completions, whole or in chunks.

    `num_top` is how many most likely tokens are shown at each place, where log-probabilities are asked for;
    `name` is unique among answers, chosen where None.
    """

    def __init__(
        self,
        model: str,
        num_choices: int,
        *,
        is_chat: bool,
        num_prompts: int = 1,
        num_top: int = 0,
        name: str | None = None,
    ) -> None:
        self._num_top = num_top
        prefix = "chatcmpl" if is_chat else "cmpl"
        self._is_chat = is_chat
        self._num_prompts = num_prompts
        self._head = {
            "id": f"{prefix}-{name or uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._choices = [Choice() for _ in range(num_choices)]

    def add(self, piece: Piece) -> None:
        """Takes in new text."""
        self._choices[piece.index].add(piece.output)

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        kind = "chat.completion" if self._is_chat else "text_completion"
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]
        return {**self._head, "object": kind, "choices": choices, "usage": self.usage()}

    def opening(self) -> list[dict[str, Any]]:
        """The chunks that begin a streamed chat: one a choice, with the role."""
        if not self._is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            for index in range(len(self._choices))
        ]

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """A streamed chunk with the new text of one choice."""
        completion = piece.output.outputs[0]
        logprobs = self._logprobs(completion.logprobs)
        text = {"delta": {"content": completion.text}} if self._is_chat else {"text": completion.text}
        choice = {
            "index": piece.index,
            **text,
            "logprobs": logprobs,
            "finish_reason": completion.finish_reason,
        }
        return self._chunk([choice])

    def usage_chunk(self) -> dict[str, Any]:
        """The last streamed chunk, where usage is asked for."""
        return self._chunk([]) | {"usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Counts of tokens; a prompt with several choices counts once."""
        per_prompt = max(1, len(self._choices) // self._num_prompts)
        firsts = self._choices[::per_prompt]
        prompt = sum(choice.num_prompt for choice in firsts)
        completion = sum(choice.num_tokens for choice in self._choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(choice.num_cached for choice in firsts)},
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices}

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        shown = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        logprobs = self._logprobs(choice.places or None)
        return {"index": index, **shown, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _logprobs(self, places: Sequence[Mapping[int, Any]] | None) -> dict[str, Any] | None:
        if places is None:
            return None
        return _chat_logprobs(places, self._num_top) if self._is_chat else _completion_logprobs(places)


def _chat_logprobs(places: Sequence[Mapping[int, Any]], num_top: int) -> dict[str, Any]:
    def entry(found: Any) -> dict[str, Any]:
        text = found.decoded_token
        return {"token": text, "logprob": found.logprob, "bytes": list(text.encode())}

    content = []
    for place in places:
        chosen = next(iter(place.values()))
        top = sorted(place.values(), key=lambda found: found.rank)[:num_top]
        content.append({**entry(chosen), "top_logprobs": [entry(found) for found in top]})
    return {"content": content, "refusal": None}


def _completion_logprobs(places: Sequence[Mapping[int, Any]]) -> dict[str, Any]:
    chosen = [next(iter(place.values())) for place in places]
    offsets, at = [], 0
    for found in chosen:
        offsets.append(at)
        at += len(found.decoded_token)
    return {
        "tokens": [found.decoded_token for found in chosen],
        "token_logprobs": [found.logprob for found in chosen],
        "top_logprobs": [
            {found.decoded_token: found.logprob for found in place.values()} for place in places
        ],
        "text_offset": offsets,
    }
