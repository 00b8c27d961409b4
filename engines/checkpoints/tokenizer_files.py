"""Tokenizers from the files beside a checkpoint, never through code that a checkpoint brings."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engines.checkpoints.contents import read_json
from headrace.engines.checkpoints.fast_tokenizer import FastTokenizer, wrap_tokenizer
from headrace.engines.errors import ModelError

if TYPE_CHECKING:
    import tokenizers
    import transformers

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SETTINGS = (
    "add_bos_token",
    "add_eos_token",
    "clean_up_tokenization_spaces",
    "model_max_length",
    "padding_side",
    "truncation_side",
    "model_input_names",
)
_NUM_TIMESTAMPS = 1501  # 0.00 to 30.00 s in steps of 0.02 s


def read_huggingface_tokenizer(directory: Path) -> "transformers.PreTrainedTokenizerFast":
    """The tokenizer of tokenizer.json, with the names, settings and chat template of the files beside it.

    Raises:
      ModelError: there is no tokenizer.json, or a file is damaged.
    """
    if not (directory / "tokenizer.json").is_file():
        raise ModelError(
            f"no tokenizer.json in {str(directory)!r}: save the tokenizer with "
            "transformers' save_pretrained, which writes one"
        )
    settings = read_json(directory / "tokenizer_config.json")
    names = read_json(directory / "special_tokens_map.json") | settings
    arguments: dict[str, Any] = {key: settings[key] for key in _SETTINGS if settings.get(key) is not None}
    arguments |= {key: _token(names[key]) for key in _NAMED_TOKENS if names.get(key)}
    extra = names.get("extra_special_tokens") or names.get("additional_special_tokens")
    if isinstance(extra, list):
        arguments["extra_special_tokens"] = [_token(token) for token in extra]
    template = read_chat_template(directory, settings)
    return wrap_tokenizer(
        read_tokenizer(directory / "tokenizer.json"), arguments | {"chat_template": template}
    )


def read_saved_tokenizer(directory: Path, *, decodes_only: bool = False) -> FastTokenizer:
    """What `save_pretrained` has written: a tokenizer.json that lacks no token and no ends of a text."""
    backend = read_tokenizer(directory / "tokenizer.json")
    settings = read_json(directory / "tokenizer_config.json")
    eos_token = settings.get("eos_token")
    content = eos_token.get("content") if isinstance(eos_token, dict) else eos_token
    return FastTokenizer(
        backend,
        lambda: read_huggingface_tokenizer(directory),
        chat_template=read_chat_template(directory, settings),
        eos_token_id=None if content is None else backend.token_to_id(content),
        decodes_only=decodes_only,
    )


def read_chat_template(directory: Path, settings: dict[str, Any]) -> str | dict[str, str] | None:
    """The chat template: chat_template.jinja, else chat_template.json, else tokenizer_config.json's."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = read_json(directory / "chat_template.json").get("chat_template") or settings.get(
        "chat_template"
    )
    if isinstance(template, list):  # several, by name
        return {item["name"]: item["template"] for item in template}
    return template


def read_whisper_tokenizer(directory: Path, vocab_size: int) -> FastTokenizer:
    """The tokenizer of a faster-whisper directory, with a token for each timestamp up to `vocab_size`.

    Without a tokenizer.json it is made from vocabulary.json or vocabulary.txt, and can decode but not encode.
    """
    if not (directory / "tokenizer.json").is_file():
        return _decode_only(read_vocabulary(directory))
    tokenizer = read_tokenizer(directory / "tokenizer.json")
    missing = vocab_size - tokenizer.get_vocab_size(with_added_tokens=True)
    if 0 < missing <= _NUM_TIMESTAMPS:
        first = _NUM_TIMESTAMPS - missing
        tokenizer.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(first, _NUM_TIMESTAMPS)])
    return FastTokenizer.of_backend(tokenizer, _WHISPER_NAMES)


def whisper_vocabulary(directory: Path) -> dict[str, int]:
    """The ids of the special tokens of a faster-whisper directory.

    Raises:
      ModelError: there is no vocabulary, or it lacks a token that every Whisper model has.
    """
    if (directory / "tokenizer.json").is_file():
        added = read_json(directory / "tokenizer.json").get("added_tokens", [])
        ids = {token["content"]: token["id"] for token in added}
    else:
        ids = {
            token: index for index, token in enumerate(read_vocabulary(directory)) if token.startswith("<|")
        }
    for token in (
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|transcribe|>",
        "<|translate|>",
        "<|notimestamps|>",
    ):
        if token not in ids:
            raise ModelError(f"the vocabulary in {str(directory)!r} has no {token}: not a Whisper model's")
    return ids


def read_vocabulary(directory: Path) -> list[str]:
    """The tokens of vocabulary.json or vocabulary.txt, in the order of their ids."""
    path = directory / "vocabulary.json"
    if path.is_file():
        try:
            tokens = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(f"not JSON: {str(path)!r} (cut short?)") from error
        if isinstance(tokens, list):
            return tokens
        raise ModelError(f"{str(path)!r} holds a {type(tokens).__name__}, wanted a list of tokens")
    path = directory / "vocabulary.txt"
    if not path.is_file():
        raise ModelError(f"no tokenizer.json, vocabulary.json or vocabulary.txt in {str(directory)!r}")
    # Tokens may be empty, and only "\n" ends one: the byte-level alphabet has other line ends of its own.
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


_WHISPER_NAMES: dict[str, Any] = dict.fromkeys(
    ("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>"
)


def _decode_only(tokens: list[str]) -> FastTokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token in tokens if token.startswith("<|") and token.endswith("|>")]
    timestamps = [token for token in special if token[2:3].isdigit()]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in special if token not in timestamps]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in timestamps])
    return FastTokenizer(
        tokenizer,
        lambda: _wrap_decode_only(tokenizer),
        eos_token_id=tokenizer.token_to_id(_WHISPER_NAMES["eos_token"]),
        decodes_only=True,
    )


def _wrap_decode_only(tokenizer: "tokenizers.Tokenizer") -> "transformers.PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    class DecodeOnlyTokenizer(PreTrainedTokenizerFast):
        def _encode_plus(self, *args, **kwargs):
            raise ModelError(
                "this model's tokenizer can only decode, since its directory has no tokenizer.json: "
                "put the tokenizer.json of the same Whisper size beside model.bin"
            )

    return DecodeOnlyTokenizer(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **_WHISPER_NAMES
    )


def read_tokenizer(path: Path) -> "tokenizers.Tokenizer":
    """The tokenizer of a tokenizer.json, as the package tokenizers has it."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"cannot read {str(path)!r}: {' '.join(str(error).split())}") from error


def _token(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    from tokenizers import AddedToken

    fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(value["content"], **{field: value[field] for field in fields if field in value})
