"""Byte-level BPE of a GGUF file: how text is split before merging, by the name in tokenizer.ggml.pre."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engines.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

_GPT2 = "gpt2"
_DIGITS_THEN_GPT2 = "digits, gpt2"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SPLITS = {
    "gpt-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
"""By tokenizer.ggml.pre: the words gpt2 and digits name splitters of `tokenizers`, the rest are patterns."""

_COMPOSED = ("qwen2", "deepseek-r1-qwen")  # text is brought to NFC first
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3")  # a word of the vocabulary is taken without merging


def build_byte_level(path: Path, own: dict[str, Any]) -> "tokenizers.Tokenizer":
    """A byte-level BPE tokenizer; `own` is the metadata below `tokenizer.ggml.`.

    Raises:
      ModelError: the splitting named by `pre` is not known, or there are no merges.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    name = own.get("pre")
    if name not in SPLITS:
        raise ModelError(
            f"{str(path)!r} splits text by tokenizer.ggml.pre {name!r}, which is not known: "
            f"there are {', '.join(sorted(SPLITS))}"
        )
    if not own.get("merges"):
        raise ModelError(f"{str(path)!r} has no merges in its tokenizer")
    vocabulary = {token: index for index, token in enumerate(own["tokens"])}
    merges = [_pair(merge) for merge in own["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in _WHOLE_WORDS))
    if name in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter(SPLITS[name])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _splitter(split: str):
    from tokenizers import Regex, pre_tokenizers

    if split == _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == _DIGITS_THEN_GPT2:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = pre_tokenizers.Split(Regex(split), "isolated")
    return pre_tokenizers.Sequence(
        [pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _pair(merge: str) -> tuple[str, str]:
    # A merge is "left right"; a space of the text is another character in the byte-level alphabet.
    left, _, right = merge.partition(" ")
    return left, right
