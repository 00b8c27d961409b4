"""Recordings come over http within limits, and error texts keep the secrets of an address."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.audio import AudioError, FetchLimits, load_audio

SECRET = "X-Amz-Signature=topsecret"


class Server(ThreadingHTTPServer):
    """Serves `content`, and misbehaves as the path asks."""

    daemon_threads = True
    content = b""
    authorization: str | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.startswith("/status/"):
            self.send_error(int(path.rpartition("/")[2]))
        elif path.startswith("/redirect/"):
            left = int(path.rpartition("/")[2])
            self.redirect(f"/redirect/{left - 1}?{SECRET}" if left > 1 else "/file")
        elif path == "/to-file":
            self.redirect("file:///etc/passwd")
        elif path == "/elsewhere":
            self.redirect(f"http://localhost:{self.server.server_address[1]}/file")
        elif path == "/slow":
            time.sleep(2)
        elif path == "/drip":
            self.send_body(self.server.content, step=100, pause_s=0.05)
        elif path == "/broken":
            self.send_body(self.server.content[: len(self.server.content) // 2])
        elif path == "/endless":
            self.send_body(self.server.content, declared=None)
        elif path == "/html":
            self.send_body(b"<!DOCTYPE html><html></html>", declared=28)
        else:
            self.server.authorization = self.headers.get("Authorization")
            self.send_body(self.server.content)

    def redirect(self, target: str) -> None:
        self.send_response(302)
        self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_body(
        self, body: bytes, *, declared: int | None = -1, step: int = 1 << 20, pause_s: float = 0.0
    ) -> None:
        self.send_response(200)
        if declared is not None:
            self.send_header("Content-Length", str(len(self.server.content) if declared < 0 else declared))
        self.end_headers()
        for start in range(0, len(body), step):
            try:
                self.wfile.write(body[start : start + step])
            except OSError:
                return
            time.sleep(pause_s)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(sound_file, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with Server(("127.0.0.1", 0), Handler) as serving:
        serving.content = sound_file("FLAC", "PCM_16")
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def error_of(url: str, **limits) -> AudioError:
    with pytest.raises(AudioError) as caught:
        load_audio(url, limits=FetchLimits(**limits))
    text = str(caught.value)
    assert SECRET not in text
    assert "topsecret" not in text
    assert "\n" not in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def test_a_url_is_fetched_and_decoded(server):
    assert load_audio(f"{server.address}/file?{SECRET}").duration_s == 2.0
    assert load_audio({"bytes": None, "path": f"{server.address}/a file é.flac"}).duration_s == 2.0


def test_a_body_without_a_declared_length_is_taken(server):
    assert load_audio(f"{server.address}/endless").duration_s == 2.0


def test_redirects_are_followed_up_to_the_limit(server):
    assert load_audio(f"{server.address}/redirect/5").duration_s == 2.0
    error = error_of(f"{server.address}/redirect/6?{SECRET}")
    assert error.kind == "fetch"
    assert "redirects" in str(error)


def test_redirects_to_other_schemes_are_refused(server):
    error = error_of(f"{server.address}/to-file?{SECRET}")
    assert error.kind == "fetch"
    assert "redirects (302)" in str(error)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_status_other_than_200_is_named(server, status):
    error = error_of(f"{server.address}/status/{status}?{SECRET}")
    assert error.kind == "fetch"
    assert str(status) in str(error)


def test_a_file_over_the_size_limit_is_refused_whether_declared_or_not(server):
    for path in ("file", "endless"):
        error = error_of(f"{server.address}/{path}?{SECRET}", max_bytes=1000)
        assert error.kind == "too_large"
        assert "1000 bytes" in str(error)


def test_a_server_that_does_not_answer_is_given_up(server):
    error = error_of(f"{server.address}/slow?{SECRET}", timeout_s=0.2)
    assert error.kind == "fetch"
    assert "0.2 s" in str(error)


def test_a_server_that_drips_is_given_up(server):
    error = error_of(f"{server.address}/drip?{SECRET}", max_fetch_s=0.2)
    assert error.kind == "fetch"
    assert "max_fetch_s" in str(error)


def test_a_lost_connection_is_an_error_and_no_truncated_recording(server):
    error = error_of(f"{server.address}/broken?{SECRET}", timeout_s=5)
    assert error.kind == "fetch"
    assert "closed after" in str(error)


def test_a_refused_connection_is_named(server):
    free = server.server_address[1]
    server.shutdown()
    server.server_close()
    error = error_of(f"http://127.0.0.1:{free}/file?{SECRET}", timeout_s=5)
    assert error.kind == "fetch"
    assert "refused" in str(error)


def test_an_error_page_in_place_of_a_recording_is_named(server):
    error = error_of(f"{server.address}/html?{SECRET}")
    assert error.kind == "undecodable"
    assert "HTML" in str(error)
    assert f"{server.address}/html" in str(error)


def test_user_and_password_are_sent_but_not_shown_and_not_passed_on(server):
    host = server.address.removeprefix("http://")
    assert load_audio(f"http://user:p%40ss@{host}/file").duration_s == 2.0
    assert server.authorization == "Basic dXNlcjpwQHNz"
    assert load_audio(f"http://user:p%40ss@{host}/elsewhere").duration_s == 2.0
    assert server.authorization is None
    text = str(error_of(f"http://user:topsecret@{host}/status/404"))
    assert "user" not in text


@pytest.mark.parametrize(
    "url", ["ftp://host/a.wav", "gs://bucket/a.wav", "s3://bucket/a.wav?" + SECRET, "file:///a.wav"]
)
def test_other_schemes_are_refused(url):
    error = error_of(url)
    assert error.kind == "source"
    assert "http(s)" in str(error)


@pytest.mark.parametrize(
    "url", [f"http://127.0.0.1:99999/a?{SECRET}", f"http:///a?{SECRET}", f"http://[::1/a?{SECRET}"]
)
def test_malformed_addresses_are_errors_without_their_text(url):
    assert error_of(url).kind == "fetch"
