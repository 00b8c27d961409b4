"""Special tokens of a Whisper vocabulary, prompts, languages, and text of token ids."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engines.checkpoints.fast_tokenizer import FastTokenizer
from headrace.engines.errors import ModelError

NUM_TIMESTAMPS = 1501
"""Timestamp tokens, from <|0.00|> to <|30.00|>."""
SECONDS_PER_TIMESTAMP = 0.02
"""Time from one timestamp token to the next."""
DETECT = -1
"""Stands in a prompt for the language token that the engine is to detect."""

UNSPACED_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages written without spaces between words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialTokens:
    """Ids of the special tokens of one vocabulary."""

    sot: int
    """<|startoftranscript|>"""
    eot: int
    """<|endoftext|>"""
    no_timestamps: int
    """<|notimestamps|>"""
    timestamp_begin: int
    """<|0.00|>; the other timestamps follow."""
    no_speech: int
    """<|nospeech|>, in older vocabularies <|nocaptions|>."""
    transcribe: int
    """<|transcribe|>"""
    translate: int
    """<|translate|>"""
    prev: int | None
    """<|startofprev|>, before text that counts as said before; None where the vocabulary has none."""
    languages: Mapping[str, int]
    """Language tokens by code; empty where the model knows English only."""

    @property
    def timestamp_end(self) -> int:
        """The id after <|30.00|>."""
        return self.timestamp_begin + NUM_TIMESTAMPS

    @property
    def is_multilingual(self) -> bool:
        return bool(self.languages)

    def is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin <= token < self.timestamp_end

    def is_text(self, token: int) -> bool:
        """Whether a token stands for text; tokens that a fine-tune added past the timestamps do."""
        return 0 <= token < self.eot or token >= self.timestamp_end

    def seconds(self, token: int) -> float:
        """Seconds from the window's start that a timestamp token stands for."""
        return round((token - self.timestamp_begin) * SECONDS_PER_TIMESTAMP, 2)

    def prompt(
        self, language: str | None, task: str, *, with_timestamps: bool, previous: Sequence[int] = ()
    ) -> list[int]:
        """Tokens that a window's decoding starts with; DETECT where the language is to be found."""
        prompt = [self.sot]
        if previous:
            assert self.prev is not None, "resolve() refuses prompts where there is no <|startofprev|>"
            prompt = [self.prev, *previous, self.sot]
        if self.is_multilingual:
            prompt.append(DETECT if language is None else self.languages[language])
            prompt.append(self.translate if task == "translate" else self.transcribe)
        if not with_timestamps:
            prompt.append(self.no_timestamps)
        return prompt


class WhisperTokenizer:
    """Text of token ids, and the special tokens of the vocabulary."""

    def __init__(self, tokenizer: FastTokenizer, special: SpecialTokens) -> None:
        self._tokenizer = tokenizer
        self._language_of = {token: code for code, token in special.languages.items()}
        self.special = special

    def previous(self, text: str, max_tokens: int) -> tuple[int, ...]:
        """Tokens of a text that counts as said before, the last ones where there are too many."""
        if not text.strip():
            return ()
        if self._tokenizer.decodes_only:
            raise ModelError(
                "this model's tokenizer can only decode, since its directory has no tokenizer.json: prompts "
                "and hotwords need the tokenizer.json of the same Whisper size beside model.bin"
            )
        ids = self._tokenizer.backend.encode(f" {text.strip()}", add_special_tokens=False).ids
        plain = [token for token in ids if self.special.is_text(token)]
        return tuple(plain[-max_tokens:]) if max_tokens > 0 else ()

    def text(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens that stand for text; the others are passed over."""
        ids = [token for token in token_ids if self.special.is_text(token)]
        return self._tokenizer.backend.decode(ids, skip_special_tokens=False)

    def words(self, token_ids: Sequence[int], language: str | None) -> list[tuple[str, tuple[int, ...]]]:
        """The text's words with their tokens; single characters or so where a language has no spaces."""
        words: list[tuple[str, tuple[int, ...]]] = []
        for text, ids in self._characters(token_ids):
            if words and not text.startswith(" ") and language not in UNSPACED_LANGUAGES:
                before, before_ids = words[-1]
                words[-1] = (before + text, before_ids + ids)
            else:
                words.append((text, ids))
        return words

    def _characters(self, token_ids: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
        """The smallest runs of tokens that decode to whole characters."""
        runs: list[tuple[str, tuple[int, ...]]] = []
        pending: list[int] = []
        for token in token_ids:
            if not self.special.is_text(token):
                continue
            pending.append(token)
            text = self.text(pending)
            if "\ufffd" not in text:
                runs.append((text, tuple(pending)))
                pending = []
        if pending:
            runs.append((self.text(pending), tuple(pending)))
        return runs

    def language_of(self, token: int) -> str | None:
        """Code of a language token."""
        return self._language_of.get(token)


def special_tokens(
    generation_config: Mapping[str, Any],
    added_tokens: Mapping[str, int],
    *,
    is_multilingual: bool,
) -> SpecialTokens:
    """Special tokens from generation_config.json, from the tokenizer's added tokens where that is silent.

    Raises:
      ModelError: one of them is in neither.
    """

    def find(name: str, *contents: str) -> int:
        value = generation_config.get(name) if name else None
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        for content in contents:
            value = added_tokens.get(content) if value is None else value
        if value is None:
            raise ModelError(f"neither generation_config.json nor the tokenizer has {contents[0]}")
        return int(value)

    no_timestamps = find("no_timestamps_token_id", "<|notimestamps|>")
    tasks = generation_config.get("task_to_id") or {}
    return SpecialTokens(
        sot=find("decoder_start_token_id", "<|startoftranscript|>"),
        eot=find("eos_token_id", "<|endoftext|>"),
        no_timestamps=no_timestamps,
        timestamp_begin=no_timestamps + 1,
        no_speech=no_timestamps - 1,
        transcribe=int(tasks["transcribe"]) if "transcribe" in tasks else find("", "<|transcribe|>"),
        translate=int(tasks["translate"]) if "translate" in tasks else find("", "<|translate|>"),
        prev=_optional(generation_config.get("prev_sot_token_id"), added_tokens.get("<|startofprev|>")),
        languages=_languages(generation_config, added_tokens) if is_multilingual else {},
    )


def _optional(*values: Any) -> int | None:
    """The first of some ids that is there."""
    return next((int(value) for value in values if value is not None), None)


def _languages(generation_config: Mapping[str, Any], added_tokens: Mapping[str, int]) -> dict[str, int]:
    tokens = generation_config.get("lang_to_id") or added_tokens
    matches = ((re.fullmatch(r"<\|([a-z]{2,3})\|>", content), token) for content, token in tokens.items())
    return {match.group(1): int(token) for match, token in matches if match}
