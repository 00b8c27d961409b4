"""Speech is packed into windows, nothing loud is lost, and every sample's place is known."""

from pathlib import Path

import numpy as np
import pytest

from headrace.audio import PackedSpeech, SpeechPacker, load_audio, silero_judge

RATE = 16_000


def tone(seconds: float, level: float = 0.1) -> np.ndarray:
    """Sound whose samples all differ, so that a place can be told from them."""
    return (np.random.default_rng(round(seconds * 100)).normal(size=round(seconds * RATE)) * level).astype(
        np.float32
    )


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


def by_level(frames: np.ndarray) -> np.ndarray:
    """A detector for these tests: what is louder than -30 dBFS is speech."""
    return (np.mean(np.square(frames), axis=1) > 1e-3).astype(np.float32)


def pack(sound: np.ndarray, judge=by_level, window_s: float = 30.0) -> list[PackedSpeech]:
    packer = SpeechPacker(judge, window_s)
    packed = []
    for start in range(0, len(sound), 50_000):
        packed += packer.add(sound[start : start + 50_000])
    packed += packer.finish()
    assert packer.kept_s == pytest.approx(sum(len(each.waveform) for each in packed) / RATE)
    for pieces, waveform in packed:
        np.testing.assert_array_equal(waveform, np.concatenate([sound[a:b] for a, b in pieces]))
        assert len(waveform) <= window_s * RATE
    order = [place for pieces, _ in packed for piece in pieces for place in piece]
    assert order == sorted(order)
    return packed


def seconds(packed: list[PackedSpeech]) -> list[list[tuple[float, float]]]:
    return [[(start / RATE, stop / RATE) for start, stop in pieces] for pieces, _ in packed]


def test_pauses_are_left_out_and_places_kept():
    sound = np.concatenate([silence(5), tone(3), silence(6), tone(4), silence(3)])
    ((first, second),) = seconds(pack(sound))
    assert first == pytest.approx((4.6, 8.4), abs=0.05)
    assert second == pytest.approx((13.6, 18.4), abs=0.05)


def test_short_pauses_stay():
    ((piece,),) = seconds(pack(np.concatenate([tone(3), silence(1.8), tone(3)])))
    assert piece == pytest.approx((0.0, 7.8), abs=0.05)


def test_short_pauses_before_and_after_all_speech_stay():
    ((piece,),) = seconds(pack(np.concatenate([silence(1.8), tone(3), silence(1.8)])))
    assert piece == (0.0, 6.6)


def test_windows_end_in_pauses():
    sound = np.concatenate([tone(14), silence(3), tone(13), silence(3), tone(12)])
    assert [len(pieces) for pieces in seconds(pack(sound))] == [2, 1]


def test_speech_without_a_pause_is_cut_where_it_is_quiet():
    sound = np.concatenate([tone(25), tone(0.3, 0.05), tone(24)])
    packed = seconds(pack(sound))
    assert packed[0][0][1] == pytest.approx(25.15, abs=0.2)
    assert packed[0][0][1] == packed[1][0][0]
    assert packed[-1][-1][1] == pytest.approx(49.3, abs=0.05)


def test_speech_that_fills_a_window_is_cut_in_its_longest_pause_there():
    sound = np.concatenate([tone(22), silence(0.2), tone(1.8), silence(0.5), tone(2), silence(0.2), tone(9)])
    packed = seconds(pack(sound))
    assert packed[0][0][1] == packed[1][0][0] == pytest.approx(24.25, abs=0.05)


def test_silence_alone_gives_no_window():
    assert pack(silence(100)) == []
    assert pack(np.zeros(0, np.float32)) == []
    assert pack(tone(30, 0.001)) == []


def test_what_is_loud_is_kept_whatever_the_detector_says():
    sound = np.concatenate([silence(3), tone(2), silence(3)])
    ((piece,),) = seconds(pack(sound, lambda frames: np.zeros(len(frames))))
    assert piece[0] <= 3.0
    assert piece[1] >= 5.0


def test_noise_below_the_speech_is_not_loud():
    sound = np.concatenate([tone(5, 0.3), tone(10, 0.02), tone(5, 0.3)])
    ((first, second),) = seconds(pack(sound))
    assert first[1] < 6
    assert second[0] > 14


def test_a_blip_at_the_end_is_kept():
    sound = np.concatenate([silence(2), tone(0.02)])
    assert seconds(pack(sound))[0][0][1] == pytest.approx(2.02, abs=0.001)


def test_windows_come_while_the_recording_goes_on():
    packer = SpeechPacker(by_level)
    speech = np.concatenate([tone(20), silence(3)])
    assert sum(len(list(packer.add(speech))) for _ in range(12)) >= 9


def test_memory_does_not_grow_with_silence_or_with_speech():
    packer = SpeechPacker(by_level)
    for sound in (silence(1), np.concatenate([tone(0.5), silence(0.5)])):
        for _ in range(200):
            list(packer.add(sound))
        assert sum(map(len, packer._coming)) < 34 * RATE
        assert len(packer._held) < 70 * RATE
        assert len(packer._pauses) < 70


def test_silero_finds_speech(shared_data: Path):
    speech = load_audio(shared_data / "speech" / "whisper__jfk.flac").waveform
    sound = np.concatenate([silence(20), speech, silence(20)])
    (pieces,) = seconds(pack(sound, silero_judge()))
    assert pieces[0][0] == pytest.approx(20.0, abs=0.5)
    assert pieces[-1][1] == pytest.approx(31.0, abs=0.6)
