"""What every request passes before an endpoint: API key, size, number of requests at a time."""

import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.engines import ConfigError
from headrace.serving.config import ServeConfig
from headrace.serving.errors import error_response

OPEN_PATHS = frozenset({"/liveness", "/readiness"})
"""Paths that need no key and are answered however busy the server is."""


class Gate:
    """Lets a request through, or answers it with 401, 413 or 429."""

    def __init__(self, app: ASGIApp, config: ServeConfig, api_keys: Sequence[bytes]) -> None:
        self._app = app
        self._config = config
        self._api_keys = api_keys
        self._num_active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._api_keys and not self._has_key(headers.get(b"authorization", b"")):
            await error_response(401, "the API key is wrong or missing", "invalid_api_key")(
                scope, receive, send
            )
        elif self._num_active >= self._config.max_concurrent:
            message = f"{self._num_active} requests are being served: try again later"
            await error_response(429, message, "too_many_requests")(scope, receive, send)
        else:
            self._num_active += 1
            try:
                await self._app(scope, _Meter(receive, self._config.max_body_bytes), send)
            finally:
                self._num_active -= 1

    def _has_key(self, header: bytes) -> bool:
        given = header.removeprefix(b"Bearer ")
        # Every key is compared in full, so that the time tells nothing.
        matches = [hmac.compare_digest(given, key) for key in self._api_keys]
        return any(matches)


class BodyTooLargeError(HTTPException):
    """The body of a request has more bytes than are allowed."""

    code = "body_too_large"


class _Meter:
    """Counts the bytes of a body."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = self._num_left = max_bytes

    async def __call__(self) -> Message:
        message = await self._receive()
        self._num_left -= len(message.get("body", b""))
        if self._num_left < 0:
            raise BodyTooLargeError(413, f"the body has more than {self._max_bytes} bytes")
        return message


def read_api_keys(path: str | None) -> list[bytes]:
    """The keys of a file, one a line.

    Raises:
      ConfigError: it cannot be read, or has no key.
    """
    if path is None:
        return []
    try:
        keys = [line.strip() for line in Path(path).read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"cannot read the API keys: {error}") from error
    if not keys:
        raise ConfigError(f"{path} has no API key: put one on each line")
    return keys
