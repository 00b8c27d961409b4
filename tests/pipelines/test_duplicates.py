"""Rows of equal content: one of them goes to the engine, all get its text."""

import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from headrace.engines import EngineError, RowError
from headrace.engines.llm import LLM, RequestOutput
from headrace.pipelines import GenerateConfig, InputError
from headrace.pipelines.duplicates import SharedOutputs, content_key
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.run import run_work
from headrace.pipelines.work import WorkRow

SMALL: dict[str, Any] = {"max_tokens": 4, "max_num_seqs": 4, "max_model_len": 64, "dtype": "float32"}
SMALL |= {"deterministic": True, "rows_per_part": 5, "ignore_eos": True}


class CountingWork(GenerateWork):
    """The job that notes which rows reach the engine."""

    def submit(self, engine: LLM, row: WorkRow) -> "Future[RequestOutput]":
        SENT.append(row.payload)
        return super().submit(engine, row)


SENT: list[Any] = []


def run(model: str, source: Path, output: Path, **options: Any) -> list[dict[str, Any]]:
    SENT.clear()
    config = GenerateConfig.of(
        **{**SMALL, "inputs": (str(source),), "output": str(output), "model": model, **options}
    )
    run_work(CountingWork(config=config))
    rows = ds.dataset(output).to_table().sort_by("row").to_pylist()
    return [{name: row[name] for name in ("id", "row", "prompt", "text", "error", "seed")} for row in rows]


def test_equal_prompts_are_sent_once_and_every_row_has_its_text(tiny_llm: str, tmp_path: Path):
    source = tmp_path / "prompts.jsonl"
    prompts = [f"prompt {n % 3}" for n in range(20)] + ["x" * 500, "x" * 500]
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    greedy = run(tiny_llm, source, tmp_path / "plain")
    assert len(SENT) == 22
    assert run(tiny_llm, source, tmp_path / "deduped", dedupe=True) == greedy
    assert sorted(each for each in SENT if "x" not in each) == ["prompt 0", "prompt 1", "prompt 2"]
    assert len(SENT) <= 5  # a failed row is not kept, and is tried again
    drawn = {"temperature": 1.0, "one_seed": True, "seed": 3}
    sampled = run(tiny_llm, source, tmp_path / "drawn", dedupe=True, **drawn)
    assert {row["seed"] for row in sampled[:20]} == {3}
    assert len({row["text"] for row in sampled[:20]}) == 3


def test_draws_of_their_own_are_not_shared(tmp_path: Path):
    with pytest.raises(InputError, match="give temperature 0, or one_seed"):
        GenerateConfig(inputs=("a",), output="o", model="m", dedupe=True, temperature=0.5)


def test_content_is_the_same_only_where_all_of_it_is():
    samples = np.zeros(4, np.float32)
    rows = [
        WorkRow(key={}, payload="a"),
        WorkRow(key={}, payload=b"a"),
        WorkRow(key={}, payload=[{"role": "user", "content": "a"}]),
        WorkRow(key={}, payload="a", options="de"),
        WorkRow(key={}, payload={"array": samples, "sampling_rate": 8000}),
        WorkRow(key={}, payload={"array": samples, "sampling_rate": 16000}),
        WorkRow(key={}, payload={"array": samples + np.float32(1), "sampling_rate": 8000}),
    ]
    assert len({content_key(row) for row in rows}) == len(rows)
    assert content_key(rows[0]) == content_key(WorkRow(key={"id": "other"}, payload="a", priority=3))


def test_no_failure_is_kept_and_nobody_waits_for_one():
    shared = SharedOutputs()
    for failure in (EngineError("it stopped"), RequestOutput(request_id="r", error=RowError("a", "b"))):
        engine: Future[Any] = Future()
        assert shared.send(b"k", lambda given=engine: given).is_first
        waiting = shared.send(b"k", Future)
        assert not waiting.is_first
        if isinstance(failure, EngineError):
            engine.set_exception(failure)
            assert waiting.future.exception(0) is failure
        else:
            engine.set_result(failure)
            assert waiting.future.result(0) is failure
    with pytest.raises(KeyError):
        shared.send(b"k", lambda: {}["odd"])
    assert shared.send(b"k", Future).is_first


def test_threads_that_ask_at_once_send_once():
    shared, sent = SharedOutputs(), []
    engine: Future[Any] = Future()

    def send() -> None:
        shared.send(b"k", lambda: sent.append(1) or engine)

    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sent == [1]
