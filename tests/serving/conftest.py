"""A server over the tiny model, on a port of its own, and the real OpenAI client."""

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from headrace.serving import Application, ServeConfig, create_app
from headrace.serving.server import make_server
from tests.engines.llm.conftest import tiny_model

__all__ = ["tiny_model"]

TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="session")
def chat_model(tiny_model: Path) -> Path:
    """The tiny model with a chat template."""
    (tiny_model / "chat_template.jinja").write_text(TEMPLATE)
    return tiny_model


class Served:
    """A running server."""

    def __init__(self, config: ServeConfig) -> None:
        self.app: Application = create_app(config)
        scheme = "http" if config.tls_cert_file is None else "https"
        self.url = f"{scheme}://{config.host}:{config.port}"
        self.server = make_server(config, self.app)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> "Served":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive(), "the server hangs"

    def wait(self, verify: ssl.SSLContext | bool = True) -> None:
        """Until the models are loaded."""
        for _ in range(3000):
            try:
                if httpx.get(f"{self.url}/readiness", verify=verify).status_code == 200:
                    return
            except httpx.ConnectError:
                pass
            assert not self.app.models.failures, self.app.models.failures
            time.sleep(0.1)
        raise AssertionError("the models never became ready")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_config(model: Path, **changes) -> ServeConfig:
    settings = {
        "model": (str(model),),
        "served_model_name": ("tiny",),
        "port": free_port(),
        "metrics_port": -1,
        "dtype": "float32",
        "max_num_seqs": 8,
        "max_model_len": 256,
    }
    return ServeConfig(**(settings | changes))


@contextmanager
def server_process(model: Path, *options: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """`headrace serve` in a process of its own once its model is loaded, and its address."""
    port = free_port()
    given = ["--model", str(model), "--served-model-name", "tiny", "--port", str(port), "--dtype", "float32"]
    sizes = ["--max-num-seqs", "8", "--max-model-len", "256", *options]
    running = subprocess.Popen(
        [sys.executable, "-m", "headrace.jobs", "serve", *given, *sizes], env=os.environ
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{url}/readiness").status_code == 200:
                    break
            except httpx.ConnectError:
                assert running.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield running, url
    finally:
        running.kill()
        running.wait()


@pytest.fixture(scope="session")
def served(chat_model: Path) -> Iterator[Served]:
    with Served(serve_config(chat_model)) as running:
        running.wait()
        yield running


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened
