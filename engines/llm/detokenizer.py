"""Tokens to text, a token at a time, at the same cost for each: what has come out is never taken back.

The pieces of text together are what decoding all the tokens at once gives. Text that a later token could
still change is held back: the bytes of an unfinished character, and, in SentencePiece vocabularies, a run of
byte tokens, which is one text or, where it is no UTF-8, a replacement character for each byte.
"""

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from headrace.engines.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PIECEWISE = frozenset({"Replace", "ByteFallback", "Fuse", "Metaspace"})


@runtime_checkable
class Detokenizer(Protocol):
    """The text of one growing row of tokens."""

    def push(self, token: int) -> str:
        """The text that this token has settled; often a word, sometimes nothing."""
        ...

    def peek(self) -> str:
        """Text held back that would be final if the row ended here; nothing where it is half a character."""
        ...

    def flush(self) -> str:
        """The rest of the text, at the end of the row."""
        ...


class Vocabulary:
    """How one model's tokens are spelt. May be shared by threads.

    Raises:
      ModelError: the tokenizer decodes in a way that is not known here.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._special = frozenset(
            token for token, added in backend.get_added_tokens_decoder().items() if added.special
        )
        steps = _decoder_steps(backend)
        kinds = [step["type"] for step in steps]
        self._is_byte_level = kinds == ["ByteLevel"]
        if not self._is_byte_level and not all(map(_is_piecewise, steps)):
            raise ModelError(f"the tokenizer's decoder is not supported: {json.dumps(steps)}")
        self._has_byte_tokens = "ByteFallback" in kinds
        self.strips_first_space = "Strip" in kinds
        self._bytes: dict[int, bytes] = {}
        self._pieces: dict[int, str | int | None] = {}
        self._anchor = None if self._is_byte_level else self._find_anchor()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A detokenizer of one row."""
        skipped = self._special if skip_special_tokens else frozenset()
        return (ByteLevelDetokenizer if self._is_byte_level else PieceDetokenizer)(self, skipped)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of all the tokens at once."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def bytes_of(self, token: int) -> bytes:
        """UTF-8 of a byte-level token; nothing for an id that has no token."""
        found = self._bytes.get(token)
        if found is None:
            spelling = self._backend.id_to_token(token) or ""
            try:
                found = bytes(_BYTE_OF[char] for char in spelling)
            except KeyError:  # an added token, spelt in plain text
                found = spelling.encode()
            self._bytes[token] = found
        return found

    def piece_of(self, token: int) -> str | int | None:
        """Text of a token that follows another, or a byte token's byte; None for an id that has no token."""
        if token not in self._pieces:
            self._pieces[token] = self._read_piece(token)
        return self._pieces[token]

    def _read_piece(self, token: int) -> str | int | None:
        spelling = self._backend.id_to_token(token)
        if spelling is None:
            return None
        byte = _BYTE_TOKEN.fullmatch(spelling)
        return int(byte[1], 16) if byte and self._has_byte_tokens else self._text_after_anchor(token)

    def _text_after_anchor(self, token: int) -> str:
        assert self._anchor is not None
        alone = self.decode([self._anchor], skip_special_tokens=False)
        return self.decode([self._anchor, token], skip_special_tokens=False)[len(alone) :]

    def _find_anchor(self) -> int:
        """A token with text of its own, before which nothing is stripped."""
        for token in range(self._backend.get_vocab_size(with_added_tokens=True)):
            spelling = self._backend.id_to_token(token)
            if spelling and spelling.isascii() and spelling.isalnum():
                return token
        raise ModelError("the tokenizer has no token of letters or digits")


class ByteLevelDetokenizer:
    """Tokens that are bytes of UTF-8."""

    def __init__(self, vocabulary: Vocabulary, skipped: frozenset[int]) -> None:
        self._bytes_of = vocabulary.bytes_of
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return "" if token in self._skipped else self._decoder.decode(self._bytes_of(token))

    def peek(self) -> str:
        return ""

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class PieceDetokenizer:
    """Tokens that are pieces of text, with single bytes among them for what the vocabulary lacks."""

    def __init__(self, vocabulary: Vocabulary, skipped: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._skipped = skipped
        self._run = bytearray()
        self._run_decoder = _new_strict_decoder()
        self._run_text: list[str] | None = []
        """The text of the run of bytes; None where it is not UTF-8."""
        self._is_first = True

    def push(self, token: int) -> str:
        if token in self._skipped:
            return ""
        piece = self._vocabulary.piece_of(token)
        if isinstance(piece, int):
            self._push_byte(piece)
        if not isinstance(piece, str):
            return ""
        text = self.flush()
        if piece and self._is_first:
            # The start of a text is decoded by rules of its own.
            piece = self._vocabulary.decode([token], skip_special_tokens=False)
            self._is_first = False
        return text + piece

    def peek(self) -> str:
        is_whole = self._run_text is not None and not self._run_decoder.getstate()[0]
        return self._read_run() if is_whole else ""

    def flush(self) -> str:
        if not self._run:
            return ""
        text = self._read_run()
        self._is_first = False
        self._run.clear()
        self._run_decoder, self._run_text = _new_strict_decoder(), []
        return text

    def _push_byte(self, byte: int) -> None:
        self._run.append(byte)
        if self._run_text is not None:
            try:
                self._run_text.append(self._run_decoder.decode(bytes([byte])))
            except UnicodeDecodeError:
                self._run_text = None

    def _read_run(self) -> str:
        if self._run_text is None or self._run_decoder.getstate()[0]:
            return "\N{REPLACEMENT CHARACTER}" * len(self._run)
        text = "".join(self._run_text)
        return (
            text[1:] if self._is_first and self._vocabulary.strips_first_space and text[:1] == " " else text
        )


def _new_strict_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="strict")


def _decoder_steps(backend: Any) -> list[dict[str, Any]]:
    """The settings of the decoder's steps, one after the other; none where tokens are joined by spaces."""
    if backend.decoder is None:
        return []
    settings = json.loads(backend.decoder.__getstate__())
    return settings["decoders"] if settings["type"] == "Sequence" else [settings]


def _is_piecewise(step: dict[str, Any]) -> bool:
    """Whether a step makes each token's text without its neighbours, byte runs and the start apart."""
    if step["type"] == "Strip":
        return (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
    return step["type"] in _PIECEWISE


def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves, the other 68 bytes for characters from U+0100 on, in
    order (Radford et al. 2019, the byte-level BPE of GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_level_alphabet()
