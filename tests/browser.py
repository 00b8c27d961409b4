"""A headless Chromium, spoken to over its own pipe: no driver, no package, no port."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Browser:
    """One page. `events` holds what the browser has told unasked so far."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = os.fdopen(answers, "rb")
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, *, width: int, height: int) -> None:
        """Loads a page at a size in CSS pixels and waits until it is loaded."""
        if self._session is None:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        is_phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"]["value"]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        content = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            content += byte
        return json.loads(content)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser for the block; the test skips where there is no Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this machine")
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = _start(program, profile, to_browser[0], from_browser[1])
        os.close(to_browser[0])
        os.close(from_browser[1])
        browser = Browser(to_browser[1], from_browser[0])
        try:
            yield browser
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(to_browser[1])
            browser._answers.close()


def _start(program: str, profile: str, commands: int, answers: int) -> subprocess.Popen[bytes]:
    """The browser with the two pipes as its descriptors 3 and 4, as --remote-debugging-pipe wants them."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    options += [f"--user-data-dir={profile}", "--disable-dev-shm-usage", "--disable-background-networking"]
    script = f'exec 3<&{commands} 4>&{answers}; exec "$@"'
    return subprocess.Popen(
        ["bash", "-c", script, "chromium", program, *options, "about:blank"],
        pass_fds=(commands, answers),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
