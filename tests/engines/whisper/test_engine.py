"""The engine on real speech, silence, noise and broken input."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from headrace.audio import AudioError, load_audio
from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ConfigError, EngineError
from headrace.engines.whisper import TranscribeOptions, Transcription, WhisperConfig, WhisperEngine
from headrace.engines.whisper.quality import compression_ratio

JFK = (
    "And so my fellow Americans ask not what your country can do for you, "
    "ask what you can do for your country."
)


@pytest.fixture(scope="module")
def jfk(shared_data: Path) -> np.ndarray:
    return load_audio(shared_data / "speech" / "whisper__jfk.flac").waveform


@pytest.fixture(scope="module")
def clips(shared_data: Path) -> list[Path]:
    names = ["0002", "0008", "0013", "0016", "0020", "0029"]
    return [shared_data / "speech" / f"TTS__LJ001-{name}.wav" for name in names]


def test_speech_gives_its_text(tiny_en: WhisperEngine, shared_data: Path):
    result = tiny_en.transcribe(str(shared_data / "speech" / "whisper__jfk.flac"))
    assert isinstance(result, dict)
    assert (result["text"], result["language"], result["error"]) == (JFK, "en", None)
    assert result["duration_s"] == pytest.approx(11.0)
    assert result["quality_flags"] == []


def test_timestamps_are_those_of_the_recording(tiny_en: WhisperEngine, jfk: np.ndarray):
    result = tiny_en.transcribe(jfk, return_timestamps=True)
    times = [time for chunk in result["chunks"] for time in chunk["timestamp"]]
    assert len(result["chunks"]) >= 2
    assert times == sorted(times)
    assert times[-1] <= result["duration_s"]


def test_a_list_gives_a_list_in_its_order(tiny_en: WhisperEngine, jfk: np.ndarray, clips: list[Path]):
    results = tiny_en.transcribe([jfk, str(clips[0]), {"array": jfk, "sampling_rate": 16_000}], batch_size=2)
    assert [result["text"] for result in results] == [JFK, "in being comparatively modern.", JFK]


def test_generate_is_an_alias(tiny_en: WhisperEngine, jfk: np.ndarray):
    assert tiny_en.generate([jfk]) == tiny_en.transcribe([jfk])


def test_a_broken_file_stops_only_itself(tiny_en: WhisperEngine, jfk: np.ndarray, tmp_path: Path):
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF but not really")
    results = tiny_en.transcribe([str(broken), jfk])
    assert (results[0]["text"], results[0]["error"] is None) == ("", False)
    assert results[1]["text"] == JFK
    with pytest.raises(AudioError):
        tiny_en.transcribe(str(broken))
    row = tiny_en.submit(broken, request_id="broken").result()
    assert row.error is not None
    assert row.error.kind


def test_silence_is_empty_without_error(tiny_en: WhisperEngine):
    before = tiny_en.metrics()
    results = tiny_en.transcribe([np.zeros(n, np.float32) for n in (800, 16_000, 480_000, 560_000)])
    assert [(r["text"], r["error"], r["chunks"]) for r in results] == [("", None, [])] * 4
    assert tiny_en.metrics()["windows"] == before["windows"]


@pytest.mark.parametrize("timestamps", [pytest.param(False, marks=pytest.mark.slow), True])
def test_text_on_noise_is_flagged(tiny_en: WhisperEngine, timestamps: bool):
    rng = np.random.default_rng(0)
    seconds = np.arange(40_000) / 16_000
    sounds = [
        rng.normal(size=40_000) * 0.1,
        rng.normal(size=32_000) * 0.002,
        np.sin(2 * np.pi * 1000 * seconds) * 0.3,
        np.sin(2 * np.pi * 440 * seconds) * (seconds % 1 < 0.3),
        rng.uniform(-1, 1, 800),
    ]
    for result in tiny_en.transcribe([s.astype(np.float32) for s in sounds], return_timestamps=timestamps):
        assert result["error"] is None
        assert not result["text"] or result["quality_flags"], result["text"]


@pytest.mark.parametrize(
    ("timestamps", "max_bytes"),
    [(True, 100_000), pytest.param(True, 10**9, marks=pytest.mark.slow),
     pytest.param(False, 10**9, marks=pytest.mark.slow)],
)  # fmt: skip
def test_every_edge_file_gives_a_result(
    tiny_en: WhisperEngine, shared_data: Path, timestamps: bool, max_bytes: int
):
    paths = [path for path in sorted((shared_data / "edge").iterdir()) if path.stat().st_size <= max_bytes]
    if max_bytes < 10**9:
        paths = [path for path in paths if "apollo" not in path.name]  # 89 s of radio, all of it retried
    for path, result in zip(paths, tiny_en.transcribe(paths, return_timestamps=timestamps), strict=True):
        assert bool(result["error"]) <= (result["text"] == ""), path.name
        assert None not in [time for chunk in result["chunks"] for time in chunk["timestamp"]]
        if any(word in path.name for word in ("noise", "empty", "silent", "laugh", "-A-")):
            assert not result["text"] or result["quality_flags"], path.name
        loops = [s for s in result["segments"] if s["compression_ratio"] > 2.4]
        assert not loops or {"repetition", "retried"} <= set(result["quality_flags"]), path.name


def test_words_at_window_borders_are_neither_doubled_nor_lost(tiny_en: WhisperEngine, shared_data: Path):
    speech = load_audio(shared_data / "speech" / "longform__LJ001_01-32.flac").waveform[: 70 * 16_000]
    result = tiny_en.transcribe(speech, return_timestamps=True)
    text = result["text"]
    assert text.count("has never been surpassed") == 1
    assert text.count("art of printing") == 1
    assert text.count("movable types") == 2
    assert text.count("consist principally of types composed to form") == 1
    assert compression_ratio(text) < 2.4
    times = [time for chunk in result["chunks"] for time in chunk["timestamp"]]
    assert times == sorted(times)
    assert times[-1] <= 70.0


def test_a_cut_word_at_the_end_keeps_the_text(tiny_en: WhisperEngine, shared_data: Path):
    speech = load_audio(shared_data / "speech" / "longform__LJ001_01-32.flac").waveform[:200_000]
    result = tiny_en.transcribe(speech, return_timestamps=True)
    assert "comparatively modern" in result["text"]
    assert result["chunks"][-1]["timestamp"][1] <= 12.5


def test_chunks_can_be_short(tiny_en: WhisperEngine, jfk: np.ndarray):
    result = tiny_en.transcribe(jfk, chunk_length_s=6.0, stride_length_s=(1.0, 1.0))
    text = result["text"].lower().replace(",", "").replace(".", "")
    assert text.count("fellow americans") == 1
    assert text.count("country") == 2


def test_a_call_that_the_model_cannot_do_is_refused(tiny_en: WhisperEngine, jfk: np.ndarray):
    for bad in ({"language": "de"}, {"task": "translate"}, {"return_timestamps": "char"}, {"batch_size": 0}):
        with pytest.raises(ValueError):
            tiny_en.transcribe(jfk, **bad)
    with pytest.raises(ValueError, match="stride"):
        tiny_en.transcribe(jfk, chunk_length_s=10.0, stride_length_s=5.0)


def test_a_row_that_the_model_cannot_do_is_a_row_error(tiny_en: WhisperEngine, jfk: np.ndarray):
    row = tiny_en.submit(jfk, TranscribeOptions(language="de"), request_id="german").result()
    assert row.error is not None
    assert row.error.kind == "options"
    results = tiny_en.transcribe([{"array": jfk, "sampling_rate": 16_000, "language": "de"}, jfk])
    assert "English only" in results[0]["error"]
    assert results[1]["text"] == JFK


def test_an_id_in_use_is_a_row_error(tiny_en: WhisperEngine, jfk: np.ndarray):
    first, second = (tiny_en.submit(jfk, request_id="twice") for _ in range(2))
    errors = [future.result().error for future in (first, second)]
    assert [error.kind for error in errors if error is not None] == ["duplicate"]


def test_a_config_that_the_model_cannot_do_is_refused(whisper_tiny_checkpoint: Checkpoint):
    for config in (
        WhisperConfig(language="de"),
        WhisperConfig(task="translate"),
        WhisperConfig(max_length=500),
    ):
        with pytest.raises(ConfigError):
            WhisperEngine(whisper_tiny_checkpoint, config)


def test_times_and_counters_add_up(tiny_en: WhisperEngine, clips: list[Path]):
    before = tiny_en.metrics()
    futures: list[Future[Transcription]] = [tiny_en.submit(path, request_id=path.name) for path in clips]
    results = [future.result() for future in futures]
    after = tiny_en.metrics()
    assert [result.request_id for result in results] == [path.name for path in clips]
    assert after["compiles"] == before["compiles"]
    assert after["windows"] - before["windows"] == len(clips)
    assert after["decoded_tokens"] - before["decoded_tokens"] == sum(result.num_tokens for result in results)
    seconds = sum(result.duration_s or 0.0 for result in results)
    assert after["audio_seconds"] - before["audio_seconds"] == pytest.approx(seconds)
    assert all(0 <= result.queue_s <= result.latency_s for result in results)


@pytest.mark.slow
def test_a_fitted_context_keeps_texts_and_leaves_no_loop(
    tiny_en: WhisperEngine, whisper_tiny_checkpoint: Checkpoint, clips: list[Path], shared_data: Path
):
    noise = (np.random.default_rng(1).normal(size=64_000) * 0.1).astype(np.float32)
    sources = [*map(str, clips), str(shared_data / "speech" / "whisper__jfk.flac"), noise]
    config = WhisperConfig(batch_size=8, temperatures=(0.0, 0.4), encoder_context="fit")
    with WhisperEngine(whisper_tiny_checkpoint, config) as engine:
        fitted = engine.transcribe(sources, return_timestamps="word")
        assert 0 < engine.metrics()["encoded_frames"] < 1500 * len(sources)
        assert engine.metrics()["context_retries"] >= 1, "noise is decoded again"
    whole = tiny_en.transcribe(sources, return_timestamps="word")
    assert fitted[-1] == whole[-1]
    for got, want in zip(fitted, whole, strict=True):
        assert max((s["compression_ratio"] for s in got["segments"]), default=0) < 2.4
        assert abs(len(got["text"]) - len(want["text"])) <= 0.1 * len(want["text"])
        ends = [word.end_s for segment in got["segments"] for word in segment["words"]]
        assert ends == sorted(ends)
        assert max(ends, default=0.0) <= got["duration_s"]


@pytest.fixture(scope="module")
def deterministic(whisper_tiny_checkpoint: Checkpoint) -> Iterator[WhisperEngine]:
    config = WhisperConfig(deterministic=True, batch_size=4, return_timestamps=True, temperatures=(0.0, 0.4))
    with WhisperEngine(whisper_tiny_checkpoint, config) as engine:
        yield engine


def test_a_text_depends_on_nothing_beside_it(deterministic: WhisperEngine, clips: list[Path]):
    noise = (np.random.default_rng(1).normal(size=64_000) * 0.1).astype(np.float32)
    sources = [str(path) for path in clips[:5]] + [noise]
    together = deterministic.transcribe(sources)
    assert deterministic.transcribe(sources[::-1])[::-1] == together
    for index in (1, 4, 5):
        assert deterministic.transcribe(sources[index]) == together[index]


def test_a_closed_engine_takes_nothing(deterministic: WhisperEngine):
    """The last one with this engine."""
    deterministic.close()
    with pytest.raises(EngineError, match="closed"):
        deterministic.submit(np.zeros(10, np.float32), request_id="late")


def test_two_texts_of_a_window_cost_one_pass_of_the_encoder(random_whisper: Callable[..., Checkpoint]):
    """Each text is the one that its task alone gives, in windows that are refilled meanwhile."""
    rng = np.random.default_rng(0)
    sounds = [(rng.normal(size=16_000 * seconds) * 0.1).astype(np.float32) for seconds in (3, 40, 2)]
    # No gate and no retry: random weights are never sure.
    config = WhisperConfig(
        dtype="float32",
        batch_size=2,
        max_length=24,
        temperatures=(0.0,),
        logprob_threshold=-1e9,
        language="de",
        return_timestamps="segment",
    )
    with WhisperEngine(random_whisper(num_mels=80), config) as engine:
        one, other = (engine.transcribe(sounds, task=task) for task in ("transcribe", "translate"))
        before = engine.metrics()
        both = engine.transcribe(sounds, task="both")
        after = engine.metrics()
        assert [each["text"] for each in both] == [each["text"] for each in one]
        assert [each["translation"] for each in both] == [each["text"] for each in other]
        assert [each["segments"] for each in both] == [each["segments"] for each in one]
        assert all("translation" not in each for each in one)
        windows = after["windows"] - before["windows"]
        assert after["encoded_frames"] - before["encoded_frames"] == 1500 * windows
        assert after["translations"] == windows
        sequential = engine.transcribe(sounds[1], task="both", mode="sequential")
        assert sequential["translation"]
