"""Special tokens, prompts, words and text."""

import pytest

from headrace.engines.errors import ModelError
from headrace.engines.whisper.tokenizer import DETECT, WhisperTokenizer, special_tokens


def encode(tokenizer: WhisperTokenizer, text: str) -> list[int]:
    return tokenizer._tokenizer.backend.encode(text, add_special_tokens=False).ids


def test_english_only_prompts_have_no_language_and_say_notimestamps(english: WhisperTokenizer):
    special = english.special
    assert (special.sot, special.eot, special.no_timestamps) == (50257, 50256, 50362)
    assert special.prompt("en", "transcribe", with_timestamps=False) == [50257, 50362]
    assert special.prompt("en", "transcribe", with_timestamps=True) == [50257]


def test_multilingual_prompts_name_language_and_task(multilingual: WhisperTokenizer):
    special = multilingual.special
    assert special.prompt("de", "translate", with_timestamps=True) == [50258, 50261, 50358]
    assert special.prompt(None, "transcribe", with_timestamps=False) == [50258, DETECT, 50359, 50363]
    assert len(special.languages) == 99


def test_special_tokens_come_from_the_tokenizer_where_the_config_is_silent(multilingual: WhisperTokenizer):
    added = multilingual._tokenizer.added_tokens
    assert special_tokens({}, added, is_multilingual=True) == multilingual.special


def test_a_vocabulary_without_special_tokens_is_refused():
    with pytest.raises(ModelError, match="notimestamps"):
        special_tokens({}, {}, is_multilingual=True)


def test_text_passes_over_special_and_time_tokens(english: WhisperTokenizer):
    ids = [50363, *encode(english, " Hello there."), 50463, 50256]
    assert english.text(ids) == " Hello there."


def test_times_of_timestamp_tokens(english: WhisperTokenizer):
    special = english.special
    assert special.seconds(special.timestamp_begin) == 0.0
    assert special.seconds(special.timestamp_end - 1) == 30.0
    assert not special.is_timestamp(special.timestamp_end)
    assert special.is_text(special.timestamp_end)


@pytest.mark.parametrize("text", [" He said: don't, 42 times.", " naïve café — 🙂 ok"])
def test_words_keep_every_token_and_character(text: str, english: WhisperTokenizer):
    ids = encode(english, text)
    words = english.words(ids, "en")
    assert "".join(word for word, _ in words) == text
    assert [token for _, tokens in words for token in tokens] == ids
    assert [word.strip() for word, _ in words] == text.split()


def test_languages_without_spaces_are_cut_at_characters(multilingual: WhisperTokenizer):
    text = "ご視聴ありがとうございました"
    words = multilingual.words(encode(multilingual, text), "ja")
    assert "".join(word for word, _ in words) == text
    assert len(words) >= 4
    assert all("\ufffd" not in word for word, _ in words)


def test_half_a_character_does_not_break_words(multilingual: WhisperTokenizer):
    ids = encode(multilingual, " ok 🙂")[:-1]
    words = multilingual.words(ids, "en")
    assert [token for _, tokens in words for token in tokens] == ids
