"""States, keys, limits and shut-down of the server."""

import re
import shutil
import ssl
import subprocess
import threading
import time

import httpx
import openai
import pytest

from headrace.engines import ConfigError
from headrace.engines.llm import SpeculativeConfig
from headrace.engines.mesh import ParallelConfig
from headrace.serving import ServeConfig
from headrace.serving.server import metrics_server
from tests.serving.conftest import Served, free_port, serve_config

ASK = {"model": "tiny", "prompt": "ab", "max_tokens": 200, "ignore_eos": True}


def test_states_and_models(served, client):
    assert httpx.get(f"{served.url}/liveness").json() == {"status": "alive"}
    assert httpx.get(f"{served.url}/readiness").json() == {"status": "ready"}
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "headrace"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert httpx.get(f"{served.url}/nothing").json()["error"]["type"] == "not_found_error"


def test_a_server_answers_503_while_it_loads_and_keeps_its_limits(chat_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    config = serve_config(chat_model, api_key_file=str(keys), max_body_bytes=1000, max_concurrent=2)
    with Served(config) as running:
        url, known = f"{running.url}/v1/completions", {"Authorization": "Bearer second"}
        short = ASK | {"max_tokens": 1}
        statuses = []
        while 200 not in statuses:
            try:
                answer = httpx.post(url, json=short, headers=known, timeout=60)
            except httpx.ConnectError:
                time.sleep(0.02)
                continue
            statuses.append(answer.status_code)
            assert answer.status_code == 200 or answer.headers["retry-after"] == "1"
            time.sleep(0.02)
        assert set(statuses) == {200, 503}
        for header in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx.post(url, json=short, headers=header).status_code == 401
        large = httpx.post(url, json=short | {"prompt": "x" * 2000}, headers=known)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        statuses = []

        def ask() -> None:
            statuses.append(httpx.post(url, json=ASK, headers=known, timeout=60).status_code)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}


def test_a_request_that_takes_too_long_is_aborted(chat_model):
    with Served(serve_config(chat_model, request_timeout_s=0.05)) as running:
        running.wait()
        answer = httpx.post(f"{running.url}/v1/completions", json=ASK, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "timeout")


def test_what_cannot_be_served_is_refused_by_name():
    for values, text in [
        ({}, "no model was given"),
        ({"model": ("a", "a")}, "one name"),
        ({"model": ("a",), "served_model_name": ("b", "c")}, "2 names for 1 models"),
        ({"model": ("a",), "tls_key_file": "k"}, "go together"),
        ({"whisper_model": ("a",), "parallel": ParallelConfig(tensor_parallel_size=2)}, "of text models"),
    ]:
        with pytest.raises(ConfigError, match=text):
            ServeConfig(**values)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_https_is_served_beside_a_metrics_port(chat_model, tmp_path):
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    port = free_port()
    files = {"tls_cert_file": certificate, "tls_key_file": key}
    speculative = SpeculativeConfig(method="ngram")
    config = serve_config(chat_model, **files, metrics_port=port, speculative=speculative)
    trusted = ssl.create_default_context(cafile=certificate)
    with Served(config) as running, metrics_server(config, running.app):
        running.wait(trusted)
        asked = ASK | {"max_tokens": 3}
        answer = httpx.post(f"{running.url}/v1/completions", json=asked, verify=trusted, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 3
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(f"{running.url}/liveness")
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        counted = 'headrace_http_requests_total{path="/v1/completions",status="200"} 1.0'
        assert counted in metrics
        assert 'headrace_completion_tokens_total{model="tiny"} 3.0' in metrics
        assert "# TYPE headrace_speculation_tokens_per_step gauge" in metrics
        per_step = re.search(r'headrace_speculation_tokens_per_step{model="tiny"} ([\d.]+)', metrics)
        assert per_step is not None
        assert 1 <= float(per_step[1]) <= 2  # the second and third token, in one or two steps
    with metrics_server(serve_config(chat_model), running.app), pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")
