"""OpenAI's batch files through a real run over the tiny model."""

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from headrace.pipelines import GenerateConfig, InputError, run_generate

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def line(number: int, url: str = CHAT, **body) -> dict:
    if url == CHAT:
        body = {"messages": [{"role": "user", "content": f"hello {number}"}], **body}
    else:
        body = {"prompt": f"hello {number}", **body}
    return {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": {"model": "any", **body}}


def bad_lines() -> dict[str, str]:
    """Lines that cannot be served, by what their errors say."""
    no_body = {key: value for key, value in line(1001).items() if key != "body"}
    return {
        "lacks body": json.dumps(no_body),
        "messages": json.dumps(line(1002, messages=[])),
        "/v1/embeddings": json.dumps({**line(1003), "url": "/v1/embeddings"}),
        "colour": json.dumps(line(1004, colour="red")),
        "temperature": json.dumps(line(1005, temperature=-1.0)),
    }


def good_lines(count: int) -> list[dict]:
    kinds = [
        {"max_tokens": 5, "temperature": 0},
        {"url": COMPLETIONS, "max_tokens": 4, "temperature": 0},
        {"max_completion_tokens": 3, "n": 2, "seed": 7},
        {"max_tokens": 3, "logprobs": True, "top_logprobs": 2, "temperature": 0},
    ]
    return [line(number, **kinds[number % len(kinds)]) for number in range(count)]


def read_lines(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def batch(tmp_path_factory, tiny_llm: str) -> Path:
    """The output of a batch file of 200 lines, 5 of them bad."""
    folder = tmp_path_factory.mktemp("batch")
    lines = [json.dumps(each) for each in good_lines(195)]
    for place, bad in zip((0, 7, 100, 101, 199), bad_lines().values(), strict=True):
        lines.insert(place, bad)
    (folder / "batch.jsonl").write_text("\n".join(lines) + "\n")
    config = GenerateConfig(
        inputs=(str(folder / "batch.jsonl"),),
        output=str(folder / "out"),
        model=tiny_llm,
        format="openai-batch",
        rows_per_part=64,
        dtype="float32",
        supervise=False,
    )
    summary = run_generate(config)
    assert (summary.rows, summary.rows_failed) == (200, 5)
    return folder / "out"


@pytest.mark.slow
def test_every_line_is_answered_in_the_right_file(batch):
    done, failed = (read_lines(batch / "__batch" / name) for name in ("output.jsonl", "errors.jsonl"))
    assert {each["custom_id"] for each in done} == {f"request-{number}" for number in range(195)}
    assert {each["custom_id"] for each in failed} == {f"request-{number}" for number in range(1001, 1006)}
    assert all(each["response"]["status_code"] == 200 and each["error"] is None for each in done)
    messages = {
        each["custom_id"]: each["response"]["body"]["error"]["message"]
        for each in failed
        if each["response"]["status_code"] == 400
    }
    for number, told in zip(range(1001, 1006), bad_lines(), strict=True):
        assert told in messages[f"request-{number}"]
    assert len({each["id"] for each in [*done, *failed]}) == 200


@pytest.mark.slow
def test_answers_have_the_form_of_the_endpoint_and_what_the_body_asked_for(batch):
    done = {
        each["custom_id"]: each["response"]["body"] for each in read_lines(batch / "__batch/output.jsonl")
    }
    chat, completion, several, logprobs = (done[f"request-{number}"] for number in range(4))
    assert (chat["object"], chat["usage"]["completion_tokens"]) == ("chat.completion", 5)
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert (completion["object"], completion["usage"]["completion_tokens"]) == ("text_completion", 4)
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert several["usage"]["completion_tokens"] <= 6
    places = logprobs["choices"][0]["logprobs"]["content"]
    assert len(places) == 3
    assert all(len(place["top_logprobs"]) == 2 for place in places)


@pytest.mark.slow
def test_the_parquet_holds_the_same_rows_and_is_read_as_it_is(batch):
    table = ds.dataset(batch, format="parquet").to_table().to_pylist()
    texts = {row["id"]: row["text"] for row in table if row["error"] is None}
    done = read_lines(batch / "__batch" / "output.jsonl")
    assert len(table) == 200
    for each in done:
        choice = each["response"]["body"]["choices"][0]
        assert texts[each["custom_id"]] == (
            choice["text"] if "text" in choice else choice["message"]["content"]
        )


def test_options_that_a_body_decides_are_refused():
    for name, value in {"template": "{x}", "prompt_column": "x", "chat": True, "id_column": "x"}.items():
        with pytest.raises(InputError, match="openai-batch"):
            GenerateConfig(inputs=("x",), output="y", model="z", format="openai-batch", **{name: value})
