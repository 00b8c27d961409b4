"""Fetches recordings over http(s) within limits."""

import base64
import http.client
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from headrace.audio.errors import AudioError
from headrace.audio.naming import display_name
from headrace.audio.recording import ReadableFile

SPOOL_BYTES = 64 * 1024**2
"""Bytes that are kept in memory before a fetched file moves to the disk."""
READ_BYTES = 256 * 1024
Spool = tempfile.SpooledTemporaryFile[bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchLimits:
    """What a recording that is fetched, or read from a stream that cannot seek, may cost at most."""

    timeout_s: float | int = 30.0
    """seconds to connect, and seconds without a byte before a fetch is given up"""
    max_fetch_s: float | int = 3600.0
    """seconds of one fetch from its first to its last byte"""
    max_bytes: int = 2 * 1024**3
    """bytes of one file"""
    max_redirects: int = 5
    """redirects that are followed"""


DEFAULT_LIMITS = FetchLimits()


def fetch(url: str, limits: FetchLimits = DEFAULT_LIMITS) -> Spool:
    """A temporary file with what the http(s) URL gives, rewound; the caller closes it.

    Error texts name the URL without its user, password, query and fragment.

    Raises:
      AudioError: kind `fetch` (no connection, status other than 200, time out, connection lost, too many
        redirects, redirect to another scheme), or `too_large`.
    """
    name = display_name(url)
    try:
        with _opener(limits).open(_request(url), timeout=limits.timeout_s) as response:
            return _read_body(response, name, limits)
    except AudioError:
        raise
    except urllib.error.HTTPError as error:
        with error:
            raise AudioError(_status_text(name, error.code), kind="fetch") from None
    except urllib.error.URLError as error:
        reason = error.reason if isinstance(error.reason, _Refusal) else _cause(error.reason, limits)
        raise AudioError(f"{name}: not fetched: {reason}", kind="fetch") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise AudioError(f"{name}: not fetched: {_cause(error, limits)}", kind="fetch") from None


def spool(stream: ReadableFile, name: str, max_bytes: int) -> Spool:
    """A temporary file with the rest of `stream`, rewound; the caller closes it.

    Raises:
      AudioError: reading failed (`unreadable`), or there are more than max_bytes (`too_large`).
    """
    return _copy(_reads(stream, name), name, max_bytes)


def _reads(stream: ReadableFile, name: str) -> Iterator[bytes]:
    while True:
        try:
            block = stream.read(READ_BYTES)
        except Exception as error:  # noqa: BLE001 (remote streams raise classes of their own)
            raise AudioError(
                f"{name}: reading it failed ({type(error).__name__}): check the disk or the connection",
                kind="unreadable",
            ) from None
        if not block:
            return
        yield block


class _Refusal(str):
    """A reason of ours, safe to show."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a limited number of redirects, to http and https only."""

    def __init__(self, max_redirects: int) -> None:
        self.max_redirects = max_redirects

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        seen = getattr(req, "headrace_redirects", 0) + 1
        if seen > self.max_redirects:
            fp.close()
            raise urllib.error.URLError(
                _Refusal(f"more than {self.max_redirects} redirects: give the final address")
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            request.headrace_redirects = seen  # pyright: ignore[reportAttributeAccessIssue]
        return request


def _opener(limits: FetchLimits) -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(limits.max_redirects),
    ):
        opener.add_handler(handler)
    return opener


def _request(url: str) -> urllib.request.Request:
    """A request for the URL, whose user and password become a header that redirects do not carry on."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    plain = urllib.parse.urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    request = urllib.request.Request(
        urllib.parse.quote(plain, safe="%/:=&?~#+!$,;'@()*[]"),
        headers={"User-Agent": "headrace", "Accept-Encoding": "identity"},
    )
    if parts.username is not None:
        user, password = (urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


def _read_body(response: http.client.HTTPResponse, name: str, limits: FetchLimits) -> Spool:
    if response.status != HTTPStatus.OK:
        raise AudioError(_status_text(name, response.status), kind="fetch")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise AudioError(
            f"{name}: not fetched: the server compresses the file: serve it as it is", kind="fetch"
        )
    length = response.headers.get("Content-Length", "")
    expected = int(length) if length.isdecimal() else None
    if expected is not None and expected > limits.max_bytes:
        raise AudioError(_too_large_text(name, limits.max_bytes), kind="too_large")
    file = _copy(_blocks(response, name, limits), name, limits.max_bytes)
    received = file.seek(0, 2)
    file.seek(0)
    if expected is not None and received < expected:
        file.close()
        raise AudioError(
            f"{name}: not fetched: the connection closed after {received} of {expected} bytes: try again",
            kind="fetch",
        )
    return file


def _blocks(response: http.client.HTTPResponse, name: str, limits: FetchLimits) -> Iterator[bytes]:
    deadline = time.monotonic() + limits.max_fetch_s
    while block := response.read1(READ_BYTES):
        yield block
        if time.monotonic() > deadline:
            raise AudioError(
                f"{name}: not fetched: not complete after {limits.max_fetch_s:g} s: raise max_fetch_s",
                kind="fetch",
            )


def _copy(blocks: Iterator[bytes], name: str, max_bytes: int) -> Spool:
    file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 (the caller closes it)
    try:
        for block in blocks:
            file.write(block)
            if file.tell() > max_bytes:
                raise AudioError(_too_large_text(name, max_bytes), kind="too_large")
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _too_large_text(name: str, max_bytes: int) -> str:
    return f"{name}: larger than {max_bytes} bytes: raise max_bytes, or split the recording"


def _status_text(name: str, status: int) -> str:
    known = {item.value: item.phrase for item in HTTPStatus}
    if 300 <= status < 400:
        return f"{name}: not fetched: it redirects ({status}) to no http or https address: give the final one"
    phrase = f" {known[status]}" if status in known else ""
    return f"{name}: not fetched: the server answered {status}{phrase}: check the address and its access"


def _cause(error: BaseException | str, limits: FetchLimits) -> str:
    """Why a fetch failed, without a text that could quote the address."""
    if isinstance(error, TimeoutError):
        return f"no answer within {limits.timeout_s:g} s: try again, or raise timeout_s"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: check the address and the network"
    return f"{type(error).__name__}: check the address and the network"
