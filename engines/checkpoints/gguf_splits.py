"""Byte-level BPE of a GGUF file: how text is split before merging, by the name in tokenizer.ggml.pre."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engines.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Splitting:
    """What happens to a text before its pieces are merged."""

    patterns: tuple[str, ...]
    """Regular expressions, one after another: what one matches is cut out, and so is what lies between."""
    takes_words: bool = False
    """A piece that is a token is taken as it is, without merging."""
    composes: bool = False
    """Text is brought to Unicode's form NFC first."""
    begins: bool = False
    """BOS is put before a text unless the file says otherwise."""


_PLAIN = Splitting(patterns=(_GPT2,))
_DIGITS = Splitting(patterns=(r"\p{N}", _GPT2))
_LLAMA = Splitting(patterns=(_LLAMA3,), takes_words=True, begins=True)
_QWEN = Splitting(patterns=(_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),), composes=True)

SPLITTINGS = {
    "default": Splitting(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais"), _PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "command-r", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Splitting(patterns=(_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN),
    "tekken": Splitting(patterns=(_TEKKEN,), takes_words=True, begins=True),
}
"""By tokenizer.ggml.pre, as llama.cpp names them."""


def build_byte_level(path: Path, own: dict[str, Any]) -> "tokenizers.Tokenizer":
    """A byte-level BPE tokenizer; `own` is the metadata below `tokenizer.ggml.`.

    Raises:
      ModelError: the splitting named by `pre` is missing or not known, or there are no merges.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    splitting = find_splitting(path, own)
    if not own.get("merges"):
        raise ModelError(f"{str(path)!r} has no merges in its tokenizer")
    vocabulary = {token: index for index, token in enumerate(own["tokens"])}
    merges = [_pair(merge) for merge in own["merges"]]
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=splitting.takes_words)
    except Exception as error:
        raise ModelError(f"{str(path)!r} has a damaged tokenizer: {' '.join(str(error).split())}") from error
    tokenizer = Tokenizer(model)
    if splitting.composes:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def find_splitting(path: Path, own: dict[str, Any]) -> Splitting:
    """The splitting that `tokenizer.ggml.pre` names."""
    name = own.get("pre")
    if name not in SPLITTINGS:
        what = "does not say how its tokenizer splits text (tokenizer.ggml.pre)"
        if name is not None:
            what = f"splits text by tokenizer.ggml.pre {name!r}, which is not known"
        raise ModelError(f"{str(path)!r} {what}: convert it again, to one of {', '.join(sorted(SPLITTINGS))}")
    return SPLITTINGS[name]


def _pair(merge: str) -> tuple[str, str]:
    # A merge is "left right"; a space of the text is another character in the byte-level alphabet.
    left, _, right = merge.partition(" ")
    return left, right
