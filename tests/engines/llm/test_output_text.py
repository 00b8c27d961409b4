"""Where stop strings end a text, against decoding every beginning of the tokens anew."""

import random

import pytest

from headrace.engines.llm.detokenizer import Vocabulary
from headrace.engines.llm.output_text import OutputText
from tests.engines.llm.test_detokenizer import sentencepiece


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(sentencepiece(decoder="strip"))


def slow_ending(vocabulary, tokens, stop, min_tokens, include) -> tuple[int, str] | None:
    """Number of tokens and text where the row ends: the first token that completes a stop string."""
    before = ""
    for count in range(1, len(tokens) + 1):
        text = vocabulary.decode(tokens[:count])
        found = [
            (at, each) for each in stop if (at := text.find(each, max(0, len(before) - len(each) + 1))) >= 0
        ]
        if found and count >= min_tokens:
            at, each = min(found)
            return count, text[: at + (len(each) if include else 0)]
        before = text
    return None


@pytest.mark.parametrize("include", [False, True])
def test_the_first_token_that_completes_a_stop_string_ends_the_text(vocabulary, include):
    rng = random.Random(1)
    first_piece = vocabulary._backend.token_to_id("▁")
    pool = [*range(first_piece, first_piece + 9), 1]
    stops = ["a", "aa", " the", "é漢", "b>a", "the a", "a b </"]
    ended = 0
    for _ in range(2000):
        tokens = [rng.choice(pool) for _ in range(30)]
        stop = rng.sample(stops, rng.randrange(1, 4))
        min_tokens = rng.choice([0, 1, 10])
        text = OutputText(vocabulary.detokenizer(), stop, include_stop=include)
        read, ending = "", None
        for count, token in enumerate(tokens, 1):
            if text.push(token, may_stop=count >= min_tokens):
                ending = count, text.finish()
                break
            read += text.read()
        expected = slow_ending(vocabulary, tokens, stop, min_tokens, include)
        assert ending == expected
        assert read + (text.finish(), text.read())[1] == text.finish()
        ended += ending is not None
    assert 500 < ended < 2000


def test_a_stop_string_of_byte_tokens_ends_the_text_with_its_last_byte(vocabulary):
    text = OutputText(vocabulary.detokenizer(), ["好"])
    tokens = [vocabulary._backend.token_to_id(f"<0x{byte:02X}>") for byte in "你好吗".encode()]
    assert [text.push(token) for token in tokens[:6]] == [False] * 5 + [True]
    assert (text.finish(), text.stop_reason) == ("你", "好")


def test_a_reader_never_sees_what_a_stop_string_takes_back(vocabulary):
    text = OutputText(vocabulary.detokenizer(), ["</b>a"])
    tokens = [vocabulary._backend.token_to_id(piece) for piece in ("a", "</b>", "é", "</b>", "a")]
    assert [(text.push(token), text.read()) for token in tokens] == [
        (False, "a"),
        (False, ""),
        (False, "</b>é"),
        (False, ""),
        (True, ""),
    ]
    assert text.finish() == "a</b>é"
