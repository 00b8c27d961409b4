"""Text that comes out token by token equals the text of all the tokens at once."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from headrace.engines import ModelError
from headrace.engines.llm.detokenizer import Vocabulary

HARD_TEXTS = ["日本語の😀👩‍👩‍👧", "漢字 and 字", "é", "naïve 🇩🇪🇯🇵", "अनुच्छेद", " two  spaces ", "�"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "▁▁", "a", "▁the", "é", "漢", "�", "</b>", "▁a▁b"]


def sentencepiece(*, decoder: str) -> Tokenizer:
    """A vocabulary with byte fallback, as Llama 2's (`strip`), Gemma's (`plain`) or T5's (`metaspace`)."""
    specials = ["<unk>", "<s>", "</s>"]
    vocab = {token: index for index, token in enumerate([*specials, *BYTES, *PIECES])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = {
        "strip": decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)]),
        "plain": decoders.Sequence(steps),
        "metaspace": decoders.Metaspace(),
    }[decoder]
    tokenizer.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in specials])
    tokenizer.add_tokens([AddedToken("<x y>", normalized=False)])
    return tokenizer


def check(vocabulary: Vocabulary, rows: list[list[int]]) -> None:
    for skip in (True, False):
        for row in rows:
            detokenizer = vocabulary.detokenizer(skip_special_tokens=skip)
            text = ""
            for index, token in enumerate(row):
                text += detokenizer.push(token)
                if held := detokenizer.peek():
                    assert text + held == vocabulary.decode(row[: index + 1], skip_special_tokens=skip)
            assert text + detokenizer.flush() == vocabulary.decode(row, skip_special_tokens=skip)


def random_rows(pool, count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.choice(pool) for _ in range(rng.randrange(20))] for _ in range(count)]


def test_byte_level_text_equals_full_decoding(smollm2_checkpoint):
    backend = smollm2_checkpoint.tokenizer().backend_tokenizer
    vocabulary = Vocabulary(backend)
    texts = [backend.encode(text, add_special_tokens=False).ids for text in HARD_TEXTS]
    pieces = [token for text in texts for token in text]
    every = range(backend.get_vocab_size() + 2)  # ids past the end have no token
    check(vocabulary, [*texts, *random_rows(pieces, 500), *random_rows(every, 500)])


@pytest.mark.parametrize("decoder", ["strip", "plain", "metaspace"])
def test_sentencepiece_text_equals_full_decoding(decoder):
    backend = sentencepiece(decoder=decoder)
    vocabulary = Vocabulary(backend)
    first_byte, first_piece = backend.token_to_id("<0x00>"), backend.token_to_id("▁")
    in_bytes = [[first_byte + byte for byte in text.encode()] for text in HARD_TEXTS]
    mixed = [token for text in in_bytes for token in text] + [first_piece, first_piece + 2, 1]
    every = range(backend.get_vocab_size() + 2)
    check(vocabulary, [*in_bytes, *random_rows(mixed, 300), *random_rows(every, 300)])


def test_whole_characters_come_out_with_the_token_that_ends_them(smollm2_checkpoint):
    backend = smollm2_checkpoint.tokenizer().backend_tokenizer
    detokenizer = Vocabulary(backend).detokenizer()
    pieces = [detokenizer.push(token) for token in backend.encode("a😀b").ids]
    assert [piece for piece in pieces if piece] == ["a", "😀", "b"]
    assert len(pieces) > 3


def test_a_decoder_that_is_not_known_is_refused_by_name():
    tokenizer = Tokenizer(models.WordPiece({"a": 0, "##b": 1}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        Vocabulary(tokenizer)
