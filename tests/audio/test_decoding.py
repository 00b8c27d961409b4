"""Files of every format decode by their content; damaged ones give what they hold."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from headrace.audio import SAMPLE_RATE, AudioError, load_audio

SOUND_FILES = [
    ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "PCM_U8"), ("WAV", "FLOAT"),
    ("WAV", "DOUBLE"), ("WAV", "ULAW"), ("WAV", "ALAW"), ("WAV", "MS_ADPCM"), ("WAV", "IMA_ADPCM"),
    ("WAVEX", "PCM_24"), ("RF64", "PCM_16"), ("W64", "PCM_16"), ("AIFF", "PCM_16"), ("AU", "PCM_16"),
    ("AU", "ULAW"), ("CAF", "PCM_24"), ("NIST", "PCM_16"), ("NIST", "ULAW"), ("VOC", "PCM_16"),
    ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
]  # fmt: skip
MEDIA_FILES = [
    ("ipod", "aac"), ("mp4", "aac"), ("adts", "aac"), ("mp3", "libmp3lame"), ("ogg", "libopus"),
    ("webm", "libopus"), ("matroska", "aac"), ("mov", "pcm_s24le"), ("mpegts", "aac"), ("ac3", "ac3"),
    ("flac", "flac"),    ("avi", "ac3"),
]  # fmt: skip
LOSSY_LIMIT = 0.95
"""Least correlation with the original after a lossy codec."""


def kind_of(content: bytes) -> str:
    with pytest.raises(AudioError) as caught:
        load_audio(content)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return caught.value.kind


@pytest.mark.parametrize(("container", "subtype"), SOUND_FILES)
def test_sound_files_decode(sound_file, chirp, container, subtype):
    recording = load_audio(sound_file(container, subtype))
    assert recording.flags == ()
    assert recording.duration_s == pytest.approx(2.0, abs=0.1)
    size = min(recording.waveform.size, 32_000)
    if subtype in ("PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "PCM_U8", "ULAW", "ALAW"):
        np.testing.assert_allclose(recording.waveform, chirp(2.0), atol=0.02)
    elif subtype not in ("MPEG_LAYER_III",):
        assert np.corrcoef(recording.waveform[:size], chirp(2.0)[:size])[0, 1] > LOSSY_LIMIT


@pytest.mark.parametrize(("container", "codec"), MEDIA_FILES)
def test_media_files_decode(media_file, container, codec):
    recording = load_audio(media_file(container, codec))
    assert recording.flags == ()
    assert recording.duration_s == pytest.approx(2.0, abs=0.1)
    assert recording.waveform.size == pytest.approx(recording.duration_s * SAMPLE_RATE, abs=2)
    assert 0.15 < np.sqrt(np.mean(np.square(recording.waveform[4_000:-4_000]))) < 0.25


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("matroska", "aac"), ("avi", "ac3")])
def test_the_audio_track_of_a_video_decodes(media_file, container, codec):
    recording = load_audio(media_file(container, codec, video=True))
    assert recording.duration_s == pytest.approx(2.0, abs=0.1)
    assert recording.flags == ()


@pytest.mark.parametrize("layout", ["mono", "5.1", "7.1", "hexadecagonal"])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_every_channel_of_a_media_file_counts(media_file, layout, container):
    stereo = load_audio(media_file(container, "aac"))
    recording = load_audio(media_file(container, "aac", layout=layout))
    assert recording.flags == ()
    assert recording.duration_s == pytest.approx(stereo.duration_s, abs=1e-3)
    power, expected = (np.mean(np.square(each.waveform[4_000:-4_000])) for each in (recording, stereo))
    assert power == pytest.approx(expected, rel=0.35)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 96_000])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_every_rate_and_channel_count_becomes_mono_16_khz(sound_file, chirp, rate, channels):
    recording = load_audio(sound_file("WAV", "PCM_24", rate=rate, channels=channels))
    assert recording.duration_s == pytest.approx(2.0, abs=1e-3)
    assert recording.waveform.size == 32_000
    inner = slice(400, -400)
    power = np.mean(np.square(recording.waveform[inner]))
    assert power == pytest.approx(np.mean(np.square(chirp(2.0)[inner])), rel=0.05)


def test_the_file_name_does_not_matter(sound_file, tmp_path):
    for name, content in (("a.raw", sound_file("WAV", "PCM_16")), ("b.mp3", sound_file("FLAC", "PCM_16"))):
        (tmp_path / name).write_bytes(content)
        assert load_audio(tmp_path / name).duration_s == 2.0
        with (tmp_path / name).open("rb") as file:
            assert load_audio(file).duration_s == 2.0


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(
    ("container", "subtype"),
    [
        ("WAV", "PCM_16"), ("WAV", "ULAW"), ("RF64", "PCM_16"), ("W64", "PCM_16"), ("AIFF", "PCM_16"),
        ("AU", "PCM_16"), ("CAF", "PCM_16"), ("NIST", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
        ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
    ],
)  # fmt: skip
def test_a_sound_file_that_is_cut_off_gives_its_beginning_with_a_flag(sound_file, container, subtype, share):
    content = sound_file(container, subtype, seconds=10)
    assert_is_beginning(content, share)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(
    ("container", "codec", "options"),
    [
        ("mp4", "aac", {"movflags": "faststart"}),
        ("mp4", "aac", {"movflags": "empty_moov+default_base_moof", "frag_duration": "1000000"}),
        ("webm", "libopus", {}), ("matroska", "aac", {}), ("mp3", "libmp3lame", {}),
        ("mp3", "libmp3lame", {"write_xing": "0"}), ("adts", "aac", {}), ("ac3", "ac3", {}),
        ("mpegts", "aac", {}),
    ],
)  # fmt: skip
def test_a_media_file_that_is_cut_off_gives_its_beginning_with_a_flag(
    media_file, container, codec, options, share
):
    assert_is_beginning(media_file(container, codec, seconds=10, options=options), share)


def assert_is_beginning(content: bytes, share: float) -> None:
    whole = load_audio(content)
    part = load_audio(content[: int(len(content) * share)])
    assert part.flags == ("decode_truncated",)
    assert (share - 0.15) * whole.duration_s < part.duration_s < (share + 0.05) * whole.duration_s
    half = part.waveform.size // 2
    np.testing.assert_allclose(part.waveform[:half], whole.waveform[:half], atol=1e-3)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("flac", "flac"), ("ogg", "libopus"), ("mp3", "libmp3lame"), ("adts", "aac"), ("webm", "libopus")],
)
def test_damage_in_the_middle_keeps_the_rest_with_a_flag(media_file, container, codec):
    content = bytearray(media_file(container, codec, seconds=10))
    middle = len(content) // 2
    content[middle : middle + 400] = np.random.default_rng(1).bytes(400)
    recording = load_audio(bytes(content))
    assert recording.flags == ("decode_truncated",)
    assert recording.duration_s > 4.5


def with_declared_bytes(wav: bytes, num_bytes: int) -> bytes:
    at = wav.index(b"data")
    return wav[:at] + b"data" + struct.pack("<I", num_bytes) + wav[at + 8 :]


@pytest.mark.parametrize("declared", [0, 0xFFFFFFFF, 0x7FFFF000])
def test_a_wav_header_from_a_pipe_without_a_length_gives_everything(sound_file, declared):
    recording = load_audio(with_declared_bytes(sound_file("WAV", "PCM_16"), declared))
    assert recording.duration_s == 2.0
    assert recording.flags == ()


@pytest.mark.parametrize(("declared", "seconds"), [(640_000, 2.0), (32_000, 1.0)])
def test_a_wav_header_that_lies_about_its_length_is_flagged(sound_file, declared, seconds):
    recording = load_audio(with_declared_bytes(sound_file("WAV", "PCM_16"), declared))
    assert recording.duration_s == seconds
    assert recording.flags == ("decode_truncated",)


def test_chunks_after_the_samples_of_a_wav_are_no_damage(sound_file):
    content = sound_file("WAV", "PCM_16") + b"LIST" + struct.pack("<I", 10_000) + bytes(10_000)
    assert load_audio(content).flags == ()


def test_non_finite_samples_in_a_file_are_refused():
    import soundfile

    for value in (np.nan, np.inf):
        file = io.BytesIO()
        soundfile.write(file, np.array([0.0] * 1000 + [value]), 16_000, format="WAV", subtype="FLOAT")
        assert kind_of(file.getvalue()) == "non_finite"


def test_zero_bytes_and_zero_samples_are_empty(sound_file):
    assert kind_of(b"") == "empty"
    for container, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("AIFF", "PCM_16")):
        assert kind_of(sound_file(container, subtype, seconds=0)) == "empty"


def archive(kind: str, content: bytes) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as zipped:
            zipped.writestr("a.wav", content)
    elif kind == "gzip":
        file.write(gzip.compress(content))
    else:
        formats = {
            "tar": tarfile.USTAR_FORMAT,
            "tar (gnu)": tarfile.GNU_FORMAT,
            "tar (pax)": tarfile.PAX_FORMAT,
        }
        with tarfile.open(fileobj=file, mode="w", format=formats[kind]) as tar:
            info = tarfile.TarInfo("a.wav")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("kind", ["zip", "gzip", "tar", "tar (gnu)", "tar (pax)"])
def test_archives_are_named_as_such(sound_file, kind):
    content = archive(kind, sound_file("WAV", "PCM_16"))
    with pytest.raises(AudioError, match=kind.split()[0]) as caught:
        load_audio(content)
    assert caught.value.kind == "archive"


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "i1", "u1", "<i4", "<f4"])
def test_raw_samples_are_named_as_such(chirp, dtype):
    samples = chirp(2.0)
    kind = np.dtype(dtype)
    scaled = (
        samples if kind.kind == "f" else samples * 2.0 ** (8 * kind.itemsize - 1) + 128 * (kind.kind == "u")
    )
    assert kind_of(scaled.astype(dtype).tobytes()) == "raw"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b'{"error": "denied"}', "JSON"),
        (b"#EXTM3U\n#EXTINF:10,\n/etc/passwd\n", "playlist"),
        (b"just some words\n" * 50, "text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"),
        (b"PAR1" + bytes(100), "Parquet"),
        (np.random.default_rng(0).bytes(50_000), "no audio format"),
        (b"RIFF$\x00\x00\x00WAVEfmt ", "damaged WAV"),
    ],
)
def test_other_files_are_named_as_what_they_are(content, named):
    with pytest.raises(AudioError, match=named) as caught:
        load_audio(content)
    assert caught.value.kind == "undecodable"


def test_an_mp4_without_its_index_says_so(media_file):
    content = media_file("mp4", "aac")
    with pytest.raises(AudioError, match="without its index") as caught:
        load_audio(content[: len(content) // 2])
    assert caught.value.kind == "undecodable"


def test_a_video_without_sound_says_so(video_file):
    with pytest.raises(AudioError, match="no audio track") as caught:
        load_audio(video_file)
    assert caught.value.kind == "no_audio"


def test_a_sphere_file_that_is_shortened_says_so():
    fields = "channel_count -i 1\nsample_rate -i 16000\nsample_n_bytes -i 2\nsample_count -i 16000\n"
    fields += "sample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    header = ("NIST_1A\n   1024\n" + fields).encode().ljust(1024)
    with pytest.raises(AudioError, match="shorten") as caught:
        load_audio(header + b"ajkg\x02" + np.random.default_rng(0).bytes(20_000))
    assert caught.value.kind == "undecodable"


def test_tags_in_old_encodings_do_not_stop_the_decoding(media_file):
    content = media_file("mp3", "libmp3lame")
    frame = b"\x00K\xf6ln \xff\xfe"
    tag = b"TIT2" + len(frame).to_bytes(4, "big") + b"\x00\x00" + frame
    header = b"ID3\x03\x00\x00" + bytes([0, 0, 0, len(tag)])
    body = content[content.index(b"\xff\xfb") :]
    assert load_audio(header + tag + body).duration_s == pytest.approx(2.0, abs=0.1)


def test_junk_after_an_mp3_is_no_damage(media_file):
    content = media_file("mp3", "libmp3lame")
    for options in ({}, {"write_xing": "0"}):
        content = media_file("mp3", "libmp3lame", options=options)
        assert load_audio(content + b"TAG" + bytes(125)).flags == ()
        assert load_audio(content + b"LYRICSBEGIN" + b"la la " * 100 + b"LYRICS200").flags == ()


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_chained_ogg_files_are_decoded_to_the_end(sound_file, subtype):
    recording = load_audio(sound_file("OGG", subtype) + sound_file("OGG", subtype, seconds=3))
    assert recording.duration_s == pytest.approx(5.0, abs=0.1)
    assert recording.flags == ()


def test_damaged_files_never_raise_anything_else(sound_file, media_file):
    rng = np.random.default_rng(0)
    files = [sound_file(*kind, seconds=0.3) for kind in SOUND_FILES if kind[0] != "MP3"]
    files += [media_file(*kind, seconds=0.3) for kind in MEDIA_FILES]
    for content in files:
        for _ in range(8):
            damaged = bytearray(content)
            for _ in range(rng.integers(1, 20)):
                damaged[int(rng.integers(len(content)) ** 2 / len(content))] = rng.integers(256)
            try:
                recording = load_audio(bytes(damaged[: rng.integers(1, len(content) + 1)]))
            except AudioError as error:
                assert "\n" not in str(error)  # noqa: PT017
            else:
                assert np.isfinite(recording.waveform).all()


def test_chained_recordings_of_different_rates_become_one(media_file, sound_file):
    first = sound_file("MP3", "MPEG_LAYER_III", rate=16_000)
    second = sound_file("MP3", "MPEG_LAYER_III", rate=22_050)
    recording = load_audio(first + second)
    assert recording.duration_s == pytest.approx(4.0, abs=0.3)
    assert recording.waveform.size == pytest.approx(recording.duration_s * SAMPLE_RATE, abs=4)


def test_the_memory_of_a_long_recording_is_little_more_than_its_waveform(sound_file, tmp_path):
    import tracemalloc

    path = tmp_path / "long.wav"
    path.write_bytes(sound_file("WAV", "PCM_16", seconds=300, rate=44_100, channels=2))
    load_audio(path)
    tracemalloc.start()
    recording = load_audio(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.3 * recording.waveform.nbytes + 16 * 1024**2
