"""The real OpenAI client sends recordings to a server over Whisper tiny.en."""

import openai
import pytest

from headrace.serving import ServeConfig
from tests.serving.conftest import Served, free_port


@pytest.fixture(scope="module")
def audio_client():
    config = ServeConfig(
        whisper_model=("demo:whisper-tiny.en",),
        served_model_name=("whisper",),
        port=free_port(),
        metrics_port=-1,
    )
    with Served(config) as running:
        running.wait()
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            yield client


@pytest.mark.slow
def test_recordings_are_transcribed_in_every_form(audio_client, shared_data):
    path = shared_data / "speech" / "TTS__LJ001-0001.wav"

    def ask(**options):
        return audio_client.audio.transcriptions.create(model="whisper", file=path, **options)

    text = ask().text.strip()
    assert "printing" in text.lower()
    assert ask(response_format="text").strip() == text
    assert ask(response_format="srt").startswith("1\n00:00:00,")
    assert ask(response_format="vtt").startswith("WEBVTT\n\n00:00:00.")
    plain = ask(response_format="verbose_json")
    assert plain.words is None
    assert "".join(segment.text for segment in plain.segments).strip() == text
    verbose = ask(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert verbose.segments[0].start < verbose.segments[-1].end <= float(verbose.duration) + 0.01
    assert [word.word for word in verbose.words] == verbose.text.split()
    starts = [word.start for word in verbose.words]
    assert starts == sorted(starts)
    assert all(word.start <= word.end for word in verbose.words)


@pytest.mark.slow
def test_what_is_no_recording_is_refused(audio_client, shared_data):
    speech = shared_data / "speech" / "TTS__LJ001-0001.wav"
    for options, error, reason in [
        ({"file": b"no audio at all"}, openai.BadRequestError, "wanted a recording"),
        ({"file": speech, "language": "de"}, openai.BadRequestError, "language"),
        ({"file": speech, "prompt": "hello"}, openai.BadRequestError, "prompt"),
        ({"file": speech, "model": "other"}, openai.NotFoundError, "other"),
        ({"file": speech, "response_format": "lines"}, openai.BadRequestError, "response_format"),
    ]:
        with pytest.raises(error, match=reason) as caught:
            audio_client.audio.transcriptions.create(**({"model": "whisper"} | options))
        assert caught.value.body["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client calls translations that
def test_an_english_model_refuses_to_translate(audio_client, shared_data):
    speech = shared_data / "speech" / "TTS__LJ001-0001.wav"
    with pytest.raises(openai.BadRequestError, match="translate"):
        audio_client.audio.translations.create(model="whisper", file=speech)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_speech_of_another_language_is_translated(shared_data):
    config = ServeConfig(whisper_model=("demo:whisper-base",), port=free_port(), metrics_port=-1)
    with Served(config) as running:
        running.wait()
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            speech = shared_data / "edge" / "cognitive-services-speech-sdk__es-mx_en-us.wav"
            ask = {"model": "demo:whisper-base", "file": speech}
            verbose = client.audio.translations.create(**ask, response_format="verbose_json")
            assert verbose.task == "translate"
            assert verbose.text.strip()
            assert client.audio.translations.create(**ask).text == verbose.text
            spoken = client.audio.transcriptions.create(**ask, response_format="verbose_json", language="es")
            assert spoken.language == "es"
