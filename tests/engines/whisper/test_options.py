"""What a request asks for, against what the model can do."""

import pytest
from transformers.models.whisper import tokenization_whisper

from headrace.engines.whisper import TranscribeOptions, WhisperConfig
from headrace.engines.whisper.languages import language_code
from headrace.engines.whisper.options import default_options, resolve
from headrace.engines.whisper.tokenizer import WhisperTokenizer


def options(**given) -> TranscribeOptions:
    return TranscribeOptions(**given).over(TranscribeOptions(chunk_length_s=30.0))


def test_order_is_config_then_checkpoint():
    checkpoint = {"language": "german", "task": "translate"}
    assert default_options(WhisperConfig(), checkpoint).language == "german"
    defaults = default_options(WhisperConfig(language="fr"), checkpoint)
    assert (defaults.language, defaults.task) == ("fr", "translate")


@pytest.mark.parametrize("language", ["de", "German", "<|de|>", " DE "])
def test_languages_go_by_code_name_and_token(language: str, multilingual: WhisperTokenizer):
    assert resolve(options(language=language), multilingual.special).language == "de"


def test_no_language_means_detection(multilingual: WhisperTokenizer):
    assert resolve(options(), multilingual.special).language is None


def test_an_unknown_language_is_refused(multilingual: WhisperTokenizer):
    with pytest.raises(ValueError, match="klingon"):
        resolve(options(language="klingon"), multilingual.special)


def test_a_language_that_the_vocabulary_lacks_is_refused(multilingual: WhisperTokenizer):
    assert "yue" not in multilingual.special.languages
    with pytest.raises(ValueError, match="yue"):
        resolve(options(language="cantonese"), multilingual.special)


def test_english_only_models_take_english_alone(english: WhisperTokenizer):
    assert resolve(options(), english.special).language == "en"
    assert resolve(options(language="english"), english.special).language == "en"
    with pytest.raises(ValueError, match="English only"):
        resolve(options(language="de"), english.special)
    with pytest.raises(ValueError, match="English only"):
        resolve(options(task="translate"), english.special)


def test_names_of_one_language_agree():
    assert language_code("Mandarin") == language_code("chinese") == "zh"


def test_languages_are_those_of_transformers():
    names = tokenization_whisper.TO_LANGUAGE_CODE
    assert {name: language_code(name) for name in names} == names
    assert {language_code(code) for code in names.values()} == set(names.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "sequential", "vad": True}, "vad is on"),
        ({"mode": "sequential", "stride_length_s": 5.0}, "begin where the last text ended"),
        ({"mode": "sequential", "chunk_length_s": 20.0}, "begin where the last text ended"),
        ({"condition_on_previous_text": True}, "side by side"),
        ({"vad": True, "stride_length_s": 5.0}, "end in pauses"),
    ],
)
def test_options_that_a_mode_cannot_honour_are_refused(given: dict, message: str, english: WhisperTokenizer):
    with pytest.raises(ValueError, match=message):
        resolve(options(**given), english.special)


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="from 0"):
        TranscribeOptions(channel=-1)
