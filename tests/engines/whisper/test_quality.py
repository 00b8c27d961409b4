"""What is silence, what is a loop, and which try is kept."""

import dataclasses
import zlib

import numpy as np
import pytest

from headrace.engines.errors import ConfigError
from headrace.engines.whisper import WhisperConfig
from headrace.engines.whisper.quality import (
    Attempt,
    best_attempt,
    compression_ratio,
    is_digital_silence,
    is_loop,
    is_silent,
    is_trusted,
    next_temperature,
    quality_flags,
)

CONFIG = WhisperConfig()
GOOD = Attempt(
    token_ids=(1, 2),
    text=" The quick brown fox jumps over the lazy dog.",
    avg_logprob=-0.3,
    no_speech_prob=0.01,
    temperature=0.0,
    language="en",
    language_probability=None,
    with_timestamps=True,
    ended=True,
)
LOOP = dataclasses.replace(GOOD, text=" of the city" * 30, avg_logprob=-0.1)
UNLIKELY = dataclasses.replace(GOOD, avg_logprob=-1.4)


def test_compression_ratio_is_bytes_over_zlib_bytes():
    text = "Grüße " * 20
    data = text.strip().encode()
    assert compression_ratio(text) == len(data) / len(zlib.compress(data))
    assert compression_ratio("  ") == 0.0


def test_digital_silence_is_told_from_quiet_sound():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=48_000).astype(np.float32)
    assert is_digital_silence(np.zeros(48_000, np.float32), -70.0)
    assert is_digital_silence(np.zeros(0, np.float32), -70.0)
    assert is_digital_silence(noise * 1e-4, -70.0)
    assert not is_digital_silence(noise * 1e-3, -70.0)
    click = np.zeros(480_000, np.float32)
    click[-400:] = 0.01
    assert not is_digital_silence(click, -70.0)


def test_a_text_that_never_ends_is_a_loop():
    assert is_loop(LOOP, CONFIG)
    assert is_loop(dataclasses.replace(GOOD, ended=False), CONFIG)
    assert not is_loop(GOOD, CONFIG)


def test_no_speech_needs_a_low_probability_too():
    assert not is_silent(dataclasses.replace(GOOD, no_speech_prob=0.9), CONFIG)
    assert is_silent(dataclasses.replace(UNLIKELY, no_speech_prob=0.9), CONFIG)
    assert not is_silent(UNLIKELY, CONFIG)


def test_only_likely_text_on_speech_without_loops_is_trusted():
    assert is_trusted(GOOD, CONFIG)
    assert not is_trusted(LOOP, CONFIG)
    assert not is_trusted(UNLIKELY, CONFIG)
    assert not is_trusted(dataclasses.replace(GOOD, text=" ..."), CONFIG)


def test_punctuation_alone_is_silence():
    assert is_silent(dataclasses.replace(GOOD, text=" . ..."), CONFIG)
    assert is_silent(dataclasses.replace(GOOD, text=""), CONFIG)


@pytest.mark.parametrize(
    ("attempt", "temperature"),
    [
        (GOOD, None),
        (LOOP, 0.2),
        (UNLIKELY, 0.2),
        (dataclasses.replace(UNLIKELY, temperature=0.8), 1.0),
        (dataclasses.replace(LOOP, temperature=1.0), None),
        (dataclasses.replace(UNLIKELY, with_timestamps=False), 0.0),
        (dataclasses.replace(UNLIKELY, no_speech_prob=0.9), None),
    ],
)
def test_what_cannot_be_trusted_is_tried_again(attempt: Attempt, temperature: float | None):
    assert next_temperature([attempt], CONFIG) == temperature


def test_retries_can_be_turned_off():
    assert next_temperature([LOOP], WhisperConfig(temperatures=(0.0,))) is None


@pytest.mark.parametrize("temperatures", [(), (0.2,), (0.0, 0.4, 0.2)])
def test_temperatures_begin_greedily_and_rise(temperatures: tuple[float, ...]):
    with pytest.raises(ConfigError, match="temperatures"):
        WhisperConfig(temperatures=temperatures)


def test_the_best_try_is_kept_not_the_last():
    worse = dataclasses.replace(GOOD, avg_logprob=-0.9, temperature=0.4)
    assert best_attempt([GOOD, worse], CONFIG) is GOOD
    assert best_attempt([LOOP, worse], CONFIG) is worse
    milder = dataclasses.replace(LOOP, text=" of the city" * 20)
    assert best_attempt([LOOP, milder], CONFIG) is milder


def test_flags_say_what_is_doubtful():
    assert quality_flags([GOOD], GOOD, CONFIG) == []
    assert quality_flags([LOOP, LOOP], LOOP, CONFIG) == ["repetition", "retried"]
    unsure = dataclasses.replace(UNLIKELY, no_speech_prob=0.7, language_probability=0.3)
    assert quality_flags([unsure], unsure, CONFIG) == ["no_speech", "low_confidence", "language_uncertain"]
