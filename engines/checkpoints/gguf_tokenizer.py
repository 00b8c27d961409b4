"""Tokenizers built from GGUF metadata with the `tokenizers` package."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engines.checkpoints.fast_tokenizer import FastTokenizer
from headrace.engines.checkpoints.gguf_sentencepiece import build_sentencepiece
from headrace.engines.checkpoints.gguf_splits import build_byte_level, find_splitting
from headrace.engines.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
}


def build_gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> FastTokenizer:
    """The tokenizer of a GGUF file, with special tokens, beginning and end tokens and chat template.

    Raises:
      ModelError: the file has no tokenizer, or one of a kind that is not known.
    """
    own = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    kind = own.get("model")
    if kind is None or not own.get("tokens"):
        raise ModelError(f"{str(path)!r} has no tokenizer")
    if kind == "gpt2":
        tokenizer, begins = build_byte_level(path, own), find_splitting(path, own).begins
    elif kind == "llama":
        tokenizer, begins = build_sentencepiece(path, own), True
    else:
        raise ModelError(f"{str(path)!r} has a tokenizer of kind {kind!r}, gpt2 and llama can be read")
    _add_tokens(tokenizer, own)
    _add_ends(tokenizer, own, begins=own.get("add_bos_token", begins))
    return FastTokenizer.of_backend(tokenizer, _names(own) | {"chat_template": _chat_template(metadata)})


def _add_tokens(tokenizer: "tokenizers.Tokenizer", own: dict[str, Any]) -> None:
    """Special and user-defined tokens, which text is cut at before anything else."""
    from tokenizers import AddedToken

    types = own.get("token_type", [])
    control = {own["tokens"][index] for index, kind in enumerate(types) if kind == _CONTROL}
    control |= {_names(own)[name] for name in ("bos_token", "eos_token", "pad_token") if name in _names(own)}
    added: list[AddedToken] = []
    for index, token in enumerate(own["tokens"]):
        if token in control:
            added.append(AddedToken(token, normalized=False, special=True))
        elif index < len(types) and types[index] == _USER_DEFINED:
            added.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_tokens(added)


def _add_ends(tokenizer: "tokenizers.Tokenizer", own: dict[str, Any], *, begins: bool) -> None:
    """Beginning and end tokens around a text."""
    from tokenizers import processors

    names = _names(own)
    first = [names["bos_token"]] if begins and "bos_token" in names else []
    last = [names["eos_token"]] if own.get("add_eos_token", False) and "eos_token" in names else []
    second = [f"{item}:1" for item in [*first, "$B", *last]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *second],
        special_tokens=[(token, own["tokens"].index(token)) for token in {*first, *last}],
    )


def _names(own: dict[str, Any]) -> dict[str, str]:
    ids = {name: own.get(key) for name, key in _NAMED.items()}
    return {name: own["tokens"][index] for name, index in ids.items() if index is not None}


def _chat_template(metadata: dict[str, Any]) -> str | dict[str, str] | None:
    prefix = "tokenizer.chat_template"
    default = metadata.get(prefix)
    named = {
        key.removeprefix(f"{prefix}."): value
        for key, value in metadata.items()
        if key.startswith(f"{prefix}.")
    }
    if not named:
        return default
    return named | ({"default": default} if default is not None else {})
