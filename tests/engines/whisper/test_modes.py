"""Chunked, sequential and VAD windows on speech with silence, repetition and prompts around it."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headrace.audio import AudioError, load_audio
from headrace.engines.whisper import TranscribeOptions, WhisperConfig, WhisperEngine

MODES = [{}, {"mode": "sequential"}, {"vad": True}]
IDS = ["chunked", "sequential", "vad"]
SENTENCE = "has never been surpassed"


@pytest.fixture(scope="module")
def speech(shared_data: Path) -> Callable[[str], np.ndarray]:
    return lambda name: load_audio(shared_data / "speech" / name).waveform


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * 16_000), np.float32)


def plain(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalpha() or char == " ")


@pytest.mark.slow
@pytest.mark.parametrize("options", MODES, ids=IDS)
def test_speech_after_long_silence_has_its_text_and_time(tiny_en: WhisperEngine, speech, options: dict):
    sound = np.concatenate([silence(35), speech("whisper__jfk.flac"), silence(40)])
    result = tiny_en.transcribe(sound, return_timestamps="word", **options)
    text = plain(result["text"])
    assert text.count("fellow americans") == 1
    assert text.count("what you can do for your country") == 1
    words = [word for segment in result["segments"] for word in segment["words"]]
    assert words[0].start_s == pytest.approx(35.3, abs=0.5)
    assert words[-1].end_s == pytest.approx(45.6, abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("options", MODES, ids=IDS)
def test_a_sentence_said_five_times_is_there_five_times(tiny_en: WhisperEngine, speech, options: dict):
    once = np.concatenate([speech("whisper__jfk.flac"), silence(1.5)])
    result = tiny_en.transcribe(np.concatenate([once] * 5), return_timestamps=True, **options)
    assert plain(result["text"]).count("fellow americans") == 5 or "repetition" in result["quality_flags"]


@pytest.mark.slow
@pytest.mark.parametrize("options", MODES, ids=IDS)
def test_nothing_is_said_in_silence(tiny_en: WhisperEngine, options: dict):
    result = tiny_en.transcribe(silence(100), **options)
    assert (result["text"], result["error"], result["duration_s"]) == ("", None, 100.0)


def music(seconds: float) -> np.ndarray:
    """Chords with overtones, vibrato and a beat, as loud as speech."""
    time = np.arange(round(seconds * 16_000)) / 16_000
    roots = (220.0, 174.6, 261.6, 196.0)
    sound = np.zeros_like(time)
    for start in range(0, round(seconds), 2):
        inside = (time >= start) & (time < start + 2)
        for ratio in (1.0, 1.25, 1.5):
            phase = 2 * np.pi * roots[start // 2 % 4] * ratio * time + 0.3 * np.sin(2 * np.pi * 5 * time)
            sound += inside * sum(np.sin(overtone * phase) / overtone for overtone in (1, 2, 3))
    beat = np.random.default_rng(0).normal(size=len(time)) * np.exp(-((time * 2) % 1) * 12)
    return (0.05 * sound + 0.1 * beat).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("options", MODES, ids=IDS)
def test_music_is_empty_or_flagged_and_speech_after_it_whole(tiny_en: WhisperEngine, speech, options: dict):
    """Names of music in brackets or notes are what the model says of it."""
    alone = tiny_en.transcribe(music(40), return_timestamps=True, **options)
    is_named = all(char in "♪[]()*. " or char.isalpha() for char in alone["text"]) and len(alone["text"]) < 40
    assert not alone["text"] or alone["quality_flags"] or is_named, alone["text"]
    sound = np.concatenate([music(31), silence(1), speech("whisper__jfk.flac")])
    both = tiny_en.transcribe(sound, return_timestamps=True, **options)
    assert plain(both["text"]).count("what you can do for your country") == 1


def test_a_prompt_is_that_of_its_own_recording(tiny_en: WhisperEngine, speech):
    sound = speech("TTS__LJ001-0008.wav")
    fresh = tiny_en.transcribe(sound)
    assert plain(fresh["text"]) == SENTENCE
    prompted = tiny_en.transcribe([sound, sound], initial_prompt="HAS NEVER. ALL IN CAPITALS. LIKE THIS")
    mapped = tiny_en.transcribe({"array": sound, "sampling_rate": 16_000, "prompt": "Surpassed, he said."})
    assert [each["error"] for each in (*prompted, mapped)] == [None] * 3
    assert tiny_en.transcribe(sound)["text"] == fresh["text"]


@pytest.mark.slow
def test_seconds_without_speech_are_counted(tiny_en: WhisperEngine, speech):
    sound = np.concatenate([speech("whisper__jfk.flac"), silence(60)])
    row = tiny_en.submit(sound, TranscribeOptions(vad=True), request_id="vad").result()
    assert row.vad_dropped_s == pytest.approx(60, abs=2)
    assert tiny_en.submit(sound, request_id="all").result().vad_dropped_s is None


def test_one_channel_of_two_is_transcribed(tiny_en: WhisperEngine, speech):
    sound = speech("TTS__LJ001-0008.wav")
    stereo = {"array": np.stack([np.zeros_like(sound), sound]), "sampling_rate": 16_000}
    assert plain(tiny_en.transcribe(stereo, channel=1)["text"]) == SENTENCE
    assert tiny_en.transcribe(stereo, channel=0)["text"] == ""
    results = tiny_en.transcribe([stereo], channel=2)
    assert "has 2 channels" in results[0]["error"]


def test_an_error_late_in_a_recording_fails_the_row_alone(tiny_en: WhisperEngine, speech):
    broken = np.concatenate([silence(3), speech("whisper__jfk.flac"), silence(60)])
    broken[-1] = np.nan
    results = tiny_en.transcribe([broken, speech("TTS__LJ001-0008.wav")])
    assert "NaN" in results[0]["error"]
    assert plain(results[1]["text"]) == SENTENCE


@pytest.mark.slow
def test_detection_keeps_to_the_languages_named(random_whisper):
    sound = (np.random.default_rng(0).normal(size=16_000) * 0.1).astype(np.float32)
    config = WhisperConfig(languages=("german", "fr"), batch_size=2, max_length=12, dtype="float32")
    with WhisperEngine(random_whisper(), config) as engine:
        assert engine.transcribe(sound)["language"] in ("de", "fr", None)


def test_each_channel_of_a_call_is_a_result_of_its_own(tiny_en: WhisperEngine, speech):
    sound, other = speech("TTS__LJ001-0008.wav"), speech("DeepSpeech__LDC93S1.wav")
    longer = np.zeros((3, max(len(sound), len(other))), np.float32)
    longer[0, : len(sound)], longer[2, : len(other)] = sound, other
    call = {"array": longer, "sampling_rate": 16_000}
    channels = tiny_en.transcribe(call, channels="split")
    assert [each["channel"] for each in channels] == [0, 1, 2]
    assert plain(channels[0]["text"]) == SENTENCE
    assert channels[1]["text"] == ""
    assert channels[2]["text"] == tiny_en.transcribe(call, channel=2)["text"]
    several = tiny_en.transcribe([call, sound, b"nothing"], channels="split")
    assert [len(each) for each in several] == [3, 1, 1]
    assert several[0] == channels
    assert (several[2][0]["channel"], several[2][0]["text"]) == (None, "")
    assert several[2][0]["error"]
    with pytest.raises(AudioError):
        tiny_en.transcribe(b"nothing", channels="split")
    with pytest.raises(ValueError, match="leave it out"):
        tiny_en.transcribe(call, channels="split", channel=1)


def test_a_broken_channel_leaves_the_other_its_text_and_a_stream_is_read_once(tiny_en: WhisperEngine, speech):
    sound = speech("TTS__LJ001-0008.wav")
    broken = np.stack([sound, sound])
    broken[0, -1] = np.nan
    first, second = tiny_en.transcribe({"array": broken, "sampling_rate": 16_000}, channels="split")
    assert "NaN" in first["error"]
    assert plain(second["text"]) == SENTENCE
    content = io.BytesIO()
    soundfile.write(content, np.stack([np.zeros_like(sound), sound], axis=1), 16_000, format="WAV")
    content.seek(0)
    assert [plain(each["text"]) for each in tiny_en.transcribe(content, channels="split")] == ["", SENTENCE]
