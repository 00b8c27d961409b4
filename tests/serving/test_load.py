"""The server under load: many streams, clients that are killed, and a signal to stop."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from statistics import median

import httpx
import psutil
import pytest

from tests.serving.conftest import free_port, server_process

NUM_CLIENTS = 64
LOAD_S = 60.0
MAX_TOKENS = 40
ASK = {"model": "tiny", "temperature": 0, "ignore_eos": True}
KILLED_CLIENT = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(sys.stdin.buffer.read())
print(client.recv(1000), flush=True)
client.recv(10**9, socket.MSG_WAITALL)
"""


def test_a_client_killed_in_a_stream_frees_its_pages_within_a_second(served):
    engine = served.app.models.text("tiny")._engine
    num_free = engine.num_free_pages
    body = json.dumps(ASK | {"prompt": "ab", "max_tokens": 250, "n": 64, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    port = served.url.rpartition(":")[2]
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED_CLIENT, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(head.encode() + body)
    client.stdin.close()
    assert b"200 OK" in client.stdout.readline()
    assert engine.num_free_pages < num_free
    client.kill()
    killed_s = time.monotonic()
    while engine.num_free_pages < num_free:
        assert time.monotonic() - killed_s < 1.0, "pages are still in use"
        time.sleep(0.01)
    client.wait()
    client.stdout.close()


@pytest.mark.slow
def test_many_streams_at_once_lose_and_mix_nothing(chat_model):
    options = ("--deterministic", "--metrics-port", "-1")
    with server_process(chat_model, *options) as (process, url):
        expected = [_ask(url, index) for index in range(NUM_CLIENTS)]
        rounds, memory = asyncio.run(_load(url, expected, psutil.Process(process.pid)))
        assert min(rounds) >= 2
        third = len(memory) // 3
        early, late = median(memory[third : 2 * third]), median(memory[2 * third :])
        sizes = f"{early / 2**20:.0f}, {late / 2**20:.0f} MiB"
        print(f"{sum(rounds)} streams, {min(rounds)} to {max(rounds)} a client, {sizes}")
        assert late < early * 1.05  # what the system lends swings by a tenth, up and down
        answer = httpx.get(f"{url}/liveness")
        assert answer.status_code == 200


@pytest.mark.slow
def test_sigterm_under_load_drains_and_metrics_count(chat_model):
    metrics_port = free_port()
    with server_process(chat_model, "--metrics-port", str(metrics_port)) as (process, url):
        ended = []

        def stream() -> None:
            asked = ASK | {"prompt": "ab", "max_tokens": 200, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=60) as answer:
                ended.append([line for line in answer.iter_lines() if line][-1])

        threads = [threading.Thread(target=stream) for _ in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        metrics = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics").text
        assert "headrace_http_requests_total" in metrics
        assert 'headrace_completion_tokens_total{model="tiny"}' in metrics
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert ended == ["data: [DONE]"] * 16
        assert process.wait(60) == 0


def _prompt(index: int) -> dict[str, object]:
    return ASK | {"prompt": f"client {index}", "max_tokens": MAX_TOKENS}


def _ask(url: str, index: int) -> str:
    answer = httpx.post(f"{url}/v1/completions", json=_prompt(index), timeout=60)
    return answer.json()["choices"][0]["text"]


async def _load(url: str, expected: list[str], process: psutil.Process) -> tuple[list[int], list[int]]:
    """Streams that each client read, all of them as expected, and the server's memory every half second."""
    end_s = time.monotonic() + LOAD_S
    rounds, memory = [0] * NUM_CLIENTS, []

    async def run_client(index: int, client: httpx.AsyncClient) -> None:
        while time.monotonic() < end_s:
            text, usage, last = "", None, ""
            asked = _prompt(index) | {"stream": True, "stream_options": {"include_usage": True}}
            async with client.stream("POST", f"{url}/v1/completions", json=asked) as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if not line:
                        continue
                    last = line.removeprefix("data: ")
                    if last == "[DONE]":
                        break
                    chunk = json.loads(last)
                    usage = chunk.get("usage") or usage
                    text += "".join(choice["text"] for choice in chunk["choices"])
            assert last == "[DONE]"
            assert text == expected[index]
            assert usage is not None
            assert usage["completion_tokens"] == MAX_TOKENS
            rounds[index] += 1

    async def watch() -> None:
        while time.monotonic() < end_s:
            memory.append(process.memory_info().rss)
            await asyncio.sleep(0.5)

    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        await asyncio.gather(watch(), *(run_client(index, client) for index in range(NUM_CLIENTS)))
    return rounds, memory
