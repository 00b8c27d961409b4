"""Tokenizers built from GGUF metadata with the `tokenizers` package."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engines.checkpoints.gguf_sentencepiece import build_sentencepiece
from headrace.engines.checkpoints.gguf_splits import build_byte_level
from headrace.engines.checkpoints.tokenizer_files import wrap_tokenizer
from headrace.engines.errors import ModelError

if TYPE_CHECKING:
    import tokenizers
    import transformers

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
}


def build_gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> "transformers.PreTrainedTokenizerFast":
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
        tokenizer = build_byte_level(path, own)
    elif kind == "llama":
        tokenizer = build_sentencepiece(path, own)
    else:
        raise ModelError(f"{str(path)!r} has a tokenizer of kind {kind!r}, headrace reads gpt2 and llama")
    _add_tokens(tokenizer, own)
    _add_ends(tokenizer, own)
    return wrap_tokenizer(tokenizer, _names(own) | {"chat_template": _chat_template(metadata)})


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


def _add_ends(tokenizer: "tokenizers.Tokenizer", own: dict[str, Any]) -> None:
    """Beginning and end tokens around a text, as add_bos_token and add_eos_token say."""
    from tokenizers import processors

    names = _names(own)
    by_default = (
        own["model"] == "llama"
    )  # llama.cpp: SentencePiece models begin with BOS unless told otherwise
    begins = own.get("add_bos_token", by_default) and "bos_token" in names
    ends = own.get("add_eos_token", False) and "eos_token" in names
    single = ([names["bos_token"]] if begins else []) + ["$A"] + ([names["eos_token"]] if ends else [])
    pair = [*single, *(f"{item}:1" for item in ([names["bos_token"]] if begins else []) + ["$B"])]
    if ends:
        pair.append(f"{names['eos_token']}:1")
    used = {names[name] for name, wanted in (("bos_token", begins), ("eos_token", ends)) if wanted}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, own["tokens"].index(token)) for token in sorted(used)],
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
