"""SentencePiece BPE of a GGUF file, as a `tokenizers` BPE with byte fallback."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engines.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

_SPACE = "▁"
_NORMAL, _USER_DEFINED = 1, 4  # tokenizer.ggml.token_type


def build_sentencepiece(path: Path, own: dict[str, Any]) -> "tokenizers.Tokenizer":
    """A SentencePiece tokenizer; `own` is the metadata below `tokenizer.ggml.`.

    Raises:
      ModelError: there are no scores, which give the order of merging.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens, scores = own["tokens"], own.get("scores")
    if not scores or len(scores) != len(tokens):
        raise ModelError(
            f"{str(path)!r} has {len(tokens)} tokens and {len(scores or [])} scores in its tokenizer"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[own.get("unknown_token_id", 0)]
    model = models.BPE(
        vocabulary, find_merges(own), unk_token=unknown, fuse_unk=True, byte_fallback="<0x00>" in vocabulary
    )
    tokenizer = Tokenizer(model)
    has_prefix = own.get("add_space_prefix", True)
    steps = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    undo = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, *([decoders.Strip(" ", 1, 0)] if has_prefix else [])])
    return tokenizer


def find_merges(own: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of tokens that make a token, in the order in which SentencePiece joins them.

    SentencePiece always joins the neighbours whose union has the highest score; a BPE takes the first merge
    of its list. So the merges are sorted by the score of what they make.
    """
    tokens = own["tokens"]
    types = own.get("token_type") or [_NORMAL] * len(tokens)
    parts = {
        token: index
        for index, token in enumerate(tokens)
        if types[index] in (_NORMAL, _USER_DEFINED) and token
    }
    found = []
    for token, index in parts.items():
        if types[index] != _NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in parts and right in parts:
                found.append((-own["scores"][index], parts[left], parts[right], left, right))
    return [(left, right) for _, _, _, left, right in sorted(found)]
