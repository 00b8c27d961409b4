"""Every kind of source gives the same recording, and a bad one an error that names it."""

import io
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.audio import AudioError, FetchLimits, Recording, load_audio


class Pipe(io.RawIOBase):
    """A stream that cannot seek, gives a little at a time, and breaks where it is told to."""

    def __init__(self, content: bytes, breaks_at: int | None = None) -> None:
        self._file = io.BytesIO(content)
        self._breaks_at = breaks_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        if self._breaks_at is not None and self._file.tell() >= self._breaks_at:
            raise OSError("connection to https://host/file?sig=topsecret lost")
        return self._file.read(min(size, 1000) if size >= 0 else size)


class Remote(Pipe):
    """A stream that can seek."""

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def error_of(source, **options) -> AudioError:
    with pytest.raises(AudioError) as caught:
        load_audio(source, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 700
    assert "topsecret" not in text
    return caught.value


@pytest.fixture(scope="module")
def flac(sound_file) -> bytes:
    return sound_file("FLAC", "PCM_16")


@pytest.fixture(scope="module")
def expected(flac: bytes) -> Recording:
    return load_audio(flac)


def assert_same(recording: Recording, expected: Recording) -> None:
    np.testing.assert_array_equal(recording.waveform, expected.waveform)
    assert recording.duration_s == expected.duration_s
    assert recording.flags == expected.flags


def test_every_kind_of_source_gives_the_same_recording(flac, expected, tmp_path):
    path = tmp_path / "a.flac"
    path.write_bytes(flac)
    nameless = tmp_path / "no extension"
    nameless.write_bytes(flac)
    sources = [
        path, str(path), nameless, flac, bytearray(flac), memoryview(flac), io.BytesIO(flac), Pipe(flac),
        Remote(flac), io.BufferedReader(Pipe(flac)), {"bytes": flac, "path": None},
        {"bytes": flac, "path": "missing.wav"},
        {"bytes": None, "path": str(path)}, {"path": str(path)}, {"bytes": flac},
        {"array": expected.waveform, "sampling_rate": 16_000, "path": "a.flac"}, expected.waveform,
    ]  # fmt: skip
    for source in sources:
        assert_same(load_audio(source), expected)
    with path.open("rb") as file:
        assert_same(load_audio(file), expected)
        assert not file.closed


@pytest.mark.parametrize("container", ["ipod", "mp4", "webm"])
def test_media_from_a_stream_that_cannot_seek_decode(media_file, container):
    content = media_file(container, "libopus" if container == "webm" else "aac")
    whole = load_audio(content)
    assert whole.duration_s == pytest.approx(2.0, abs=0.1)
    assert_same(load_audio(Pipe(content)), whole)
    assert_same(load_audio(Remote(content)), whole)


def test_a_fifo_is_read_to_its_end(flac, expected, tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(flac,))
    writer.start()
    assert_same(load_audio(path), expected)
    writer.join()


@pytest.mark.parametrize("kind", [io.BytesIO, Remote])
def test_a_file_object_is_read_from_its_position_on(flac, expected, kind, media_file):
    file = kind(b"12345" + flac)
    file.seek(5)
    assert_same(load_audio(file), expected)
    video = media_file("mp4", "aac", video=True)
    file = kind(b"12345" + video)
    file.seek(5)
    assert_same(load_audio(file), load_audio(video))


def test_the_rate_of_a_mapping_wins_over_the_option():
    mapping = {"array": np.zeros(8_000, np.float32), "sampling_rate": 8_000}
    assert load_audio(mapping, sampling_rate=16_000).duration_s == 1.0
    assert load_audio({"array": np.zeros(8_000, np.float32)}, sampling_rate=8_000).duration_s == 1.0


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "missing.wav"
    for source in (path, str(path), {"bytes": None, "path": str(path)}, str(path / "below")):
        error = error_of(source)
        assert error.kind == "not_found"
        assert "missing.wav" in str(error)


def test_a_directory_is_refused(tmp_path):
    assert error_of(tmp_path).kind == "not_found"


@pytest.mark.parametrize("path", ["a\0b.wav", "x" * 5000, "UklGRiQAAABXQVZF" * 1000])
def test_text_that_is_no_path_is_an_error_without_its_whole_content(path):
    assert error_of(path).kind == "unreadable"


def test_a_name_with_control_characters_stays_on_one_line(tmp_path):
    path = tmp_path / "a\nb\x1b[31m.wav"
    path.write_bytes(b"")
    assert "\x1b" not in str(error_of(path))


def test_errors_of_files_name_them(tmp_path):
    path = tmp_path / "empty.wav"
    path.write_bytes(b"")
    with path.open("rb") as file:
        for source in (path, file, {"bytes": b"", "path": "shard/empty.wav"}):
            error = error_of(source)
            assert error.kind == "empty"
            assert "empty.wav" in str(error)


def test_the_query_of_an_address_in_a_path_is_not_shown():
    error = error_of({"bytes": b"", "path": "https://user:topsecret@host/a.wav?sig=topsecret#topsecret"})
    assert "https://host/a.wav" in str(error)


def test_a_row_without_audio_is_empty():
    for row in ({"bytes": None, "path": None}, {}, {"array": None, "sampling_rate": 16_000}, {"path": ""}):
        assert error_of(row).kind == "empty"


def test_a_stream_that_breaks_is_an_error_and_no_truncated_recording(flac, sound_file, media_file):
    for content in (flac, sound_file("WAV", "PCM_16"), media_file("webm", "libopus")):
        for kind in (Pipe, Remote):
            assert error_of(kind(content, breaks_at=len(content) // 2)).kind == "unreadable"


def test_a_closed_file_is_unreadable(flac):
    file = io.BytesIO(flac)
    file.close()
    assert error_of(file).kind == "unreadable"


def test_bytes_that_are_text_are_refused():
    assert error_of({"bytes": "UklGRg==", "path": "a.wav"}).kind == "source"


def test_a_stream_over_the_size_limit_is_refused(flac):
    assert error_of(Pipe(flac), limits=FetchLimits(max_bytes=1000)).kind == "too_large"


def test_a_file_that_is_open_for_text_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a")
    with path.open() as file:
        assert error_of(file).kind == "source"
    assert error_of(io.StringIO("abc")).kind == "source"


def test_errors_survive_pickling(tmp_path):
    error = error_of(tmp_path / "missing.wav")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.kind) == (str(error), error.kind)


def test_decoding_in_many_threads_gives_the_same(flac, media_file):
    contents = [flac, media_file("mp4", "aac"), media_file("mp3", "libmp3lame")] * 4
    expected = [load_audio(content).waveform for content in contents]
    found: list[np.ndarray | None] = [None] * len(contents)

    def work(index: int) -> None:
        found[index] = load_audio(contents[index]).waveform

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(contents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours is not None
        np.testing.assert_array_equal(ours, theirs)


def test_the_working_directory_is_where_relative_paths_start(flac, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.flac").write_bytes(flac)
    assert load_audio("a.flac").duration_s == 2.0
