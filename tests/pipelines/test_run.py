"""Whole runs of a tiny random model: every row once, errors as rows, resume, refusals, one load."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headrace.engines import ConfigError, ModelError
from headrace.engines.llm import LLM, RequestOutput
from headrace.pipelines import GenerateConfig, InputError, OutputError, RunError, run_generate
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.in_flight import IN_FLIGHT
from headrace.pipelines.output_directory import claim_output
from headrace.pipelines.run import run_work
from headrace.pipelines.run_view import read_run
from headrace.pipelines.scans import TableRow
from headrace.pipelines.work import WorkRow

MakePrompts = Callable[[int], Path]

# Few shapes, so that few programs are compiled.
SMALL: dict[str, Any] = {"max_tokens": 6, "max_num_seqs": 8, "max_model_len": 128, "dtype": "float32"}
SMALL |= {"deterministic": True, "rows_per_part": 5, "ignore_eos": True}


def make_config(model: str, source: Path, output: Path, **options: Any) -> GenerateConfig:
    return GenerateConfig.of(
        **{**SMALL, "inputs": (str(source),), "output": str(output), "model": model, **options}
    )


def read_rows(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output).to_table().sort_by([("source", "ascending"), ("row", "ascending")]).to_pylist()


def texts(output: Path) -> list[tuple[int, str]]:
    return [(row["row"], row["text"]) for row in read_rows(output)]


def test_every_prompt_gets_one_row_and_the_run_is_described(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    seen = []
    summary = run_generate(make_config(tiny_llm, make_prompts(23), output), on_progress=seen.append)
    rows = read_rows(output)
    assert [row["id"] for row in rows] == [f"prompts.jsonl#{n}" for n in range(23)]
    assert [row["prompt"] for row in rows] == [f"prompt number {n}" for n in range(23)]
    assert {row["finish_reason"] for row in rows} == {"length"}
    assert {row["completion_tokens"] for row in rows} == {6}
    assert all(row["error"] is None and row["seed"] is None and row["quality_flags"] == [] for row in rows)
    assert all(0 <= row["queue_s"] <= row["ttft_s"] <= row["latency_s"] for row in rows)
    assert (summary.rows, summary.rows_failed, summary.units, summary.parts_total) == (23, 0, 138.0, 5)
    assert (summary.rows_run, summary.parts_reused, summary.model_loads) == (23, 0, 1)
    assert (seen[-1].rows_done, seen[-1].rows_total, seen[-1].parts_done) == (23, 23, 5)
    assert IN_FLIGHT.tallies(str(output)) == {}

    names = sorted(path.name for path in (output / "__run").iterdir())
    assert names == ["_SUCCESS", "heartbeat.json", "journal", "lock", "metrics.parquet", "run.json", "tmp"]
    assert list((output / "__run" / "journal").iterdir()) == []
    metrics = pq.read_table(output / "__run" / "metrics.parquet").to_pylist()
    assert [(row["start"], row["stop"], row["rows"]) for row in metrics] == [
        (0, 5, 5),
        (5, 10, 5),
        (10, 15, 5),
        (15, 20, 5),
        (20, 23, 3),
    ]
    assert sum(dict(row["metrics"])["completion_tokens"] for row in metrics) == 138
    assert all(dict(row["metrics"])["host_memory_peak_bytes"] > 1 << 20 for row in metrics)
    engine = dict(max(metrics, key=lambda row: row["finished_at"])["engine"])
    assert 0 < engine["busy_slot_steps"] <= engine["slot_steps"]
    record = json.loads((output / "__run" / "run.json").read_text())
    assert (record["state"], record["totals"]["rows"], record["job"]) == ("done", 23, "generate")
    assert record["totals"]["metrics"]["latency_s_p50"] <= record["totals"]["metrics"]["latency_s_max"]
    assert record["devices"] == [metrics[0]["device"]]


def test_what_speculation_gained_is_told_wherever_a_run_is(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    options = {"deterministic": False, "method": "ngram", "disable_by_batch_size": 1, "max_tokens": 40}
    summary = run_generate(make_config(tiny_llm, make_prompts(1), output, **options))
    found = summary.ratios
    assert 0 <= found["speculation_acceptance_rate"] <= 1
    assert 1 <= found["speculation_tokens_per_step"] <= 5
    assert read_run(str(output)).ratios == found
    totals = json.loads((output / "__run" / "run.json").read_text())["totals"]["metrics"]
    part = pq.read_table(output / "__run" / "metrics.parquet").to_pylist()[0]
    assert {name: totals[f"engine_{name}"] for name in found} == found == dict(part["engine_ratios"])
    assert totals["engine_accepted_tokens"] == dict(part["engine"])["accepted_tokens"]


def test_a_second_launch_reuses_parts_and_does_only_what_is_missing(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    config = make_config(tiny_llm, make_prompts(15), output)
    run_generate(config)
    before = texts(output)
    parts = sorted(output.glob("part-*"))
    times = [part.stat().st_mtime_ns for part in parts]
    summary = run_generate(config)
    assert (summary.rows, summary.rows_run, summary.parts_reused, summary.model_loads) == (15, 0, 3, 0)
    parts[1].unlink()
    summary = run_generate(config)
    assert (summary.rows, summary.rows_run, summary.parts_reused, summary.model_loads) == (15, 5, 2, 1)
    assert texts(output) == before
    after = [part.stat().st_mtime_ns for part in parts]
    assert (after[0], after[2]) == (times[0], times[2])
    assert after[1] > times[1]


def test_a_bad_row_is_one_row_with_an_error_and_the_others_stand(tiny_llm: str, tmp_path: Path):
    source = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"key": "a", "prompt": "good"}),
        "not json",
        json.dumps({"key": "a", "prompt": None}),
        json.dumps({"key": None, "prompt": 7}),
        json.dumps({"prompt": "x" * 500}),
        json.dumps({"key": "b"}),
        json.dumps({"key": "c", "prompt": "half \ud800"}),
        json.dumps({"key": "d", "prompt": ""}),
        json.dumps({"key": 5, "prompt": "good again"}),
    ]
    source.write_text("\n".join(lines))
    output = tmp_path / "out"
    summary = run_generate(make_config(tiny_llm, source, output, id_column="key", keep_columns=("key",)))
    rows = read_rows(output)
    assert [row["row"] for row in rows] == list(range(9))
    assert [row["error"] is None for row in rows] == [True] + [False] * 7 + [True]
    assert [row["id"] for row in rows] == [
        "a", "rows.jsonl#1", "a", "rows.jsonl#3", "rows.jsonl#4", "b", "c", "d", "5",
    ]  # fmt: skip
    assert [row["key"] for row in rows] == ["a", None, "a", None, None, "b", None, "d", "5"]
    assert summary.errors_by_kind == {
        "malformed": 2,
        "missing_value": 2,
        "prompt_empty": 1,
        "prompt_too_long": 1,
        "prompt_type": 1,
    }
    for row in rows:
        if row["error"] is not None:
            assert row["finish_reason"] == "error"
            assert "\n" not in row["error"]
            filled = {name for name, value in row.items() if value is not None}
            assert filled <= {
                "id",
                "source",
                "row",
                "prompt",
                "finish_reason",
                "quality_flags",
                "error",
                "key",
            }


def test_prompts_come_from_every_table_format_with_columns_and_extras(tiny_llm: str, tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    messages = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]]
    pq.write_table(pa.table({"messages": messages, "prompt": ["p0", "p1"]}), data / "a.parquet")
    (data / "b.csv").write_text('prompt,n\n"one, two",1\n')
    (data / "c.txt").write_text("first line\nsecond line\n")
    (data / "d.jsonl").write_text('{"prompt": "json"}\n')
    output = tmp_path / "out"
    config = make_config(
        tiny_llm, data, output, with_columns=("token_ids", "cumulative_logprob"), temperature=1.0, seed=3
    )
    run_generate(config)
    rows = read_rows(output)
    assert [(row["source"], row["row"], row["prompt"]) for row in rows] == [
        ("a.parquet", 0, "p0"),
        ("a.parquet", 1, "p1"),
        ("b.csv", 0, "one, two"),
        ("c.txt", 0, "first line"),
        ("c.txt", 1, "second line"),
        ("d.jsonl", 0, "json"),
    ]
    assert all(len(row["token_ids"]) == 6 and row["cumulative_logprob"] < 0 for row in rows)
    assert len({row["seed"] for row in rows}) == 6

    chats = tmp_path / "chats"
    run_generate(make_config(tiny_llm, data / "a.parquet", chats, prompt_column="messages", system="s"))
    assert [json.loads(row["prompt"]) for row in read_rows(chats)] == messages
    filled = tmp_path / "filled"
    run_generate(make_config(tiny_llm, data / "b.csv", filled, template="{n}: {prompt}", chat=True))
    assert [row["prompt"] for row in read_rows(filled)] == ["1: one, two"]


def test_samples_and_logprobs_have_columns_of_their_own(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    options = {"n": 2, "best_of": 3, "temperature": 1.0, "logprobs": 1, "prompt_logprobs": 0}
    options |= {"chat_template": "{% for m in messages %}<{{ m.content }}>{% endfor %}", "chat": True}
    options |= {"tokenizer": tiny_llm, "hf_overrides": '{"max_position_embeddings": 128}'}
    run_generate(make_config(tiny_llm, make_prompts(3), output, **options))
    for row in read_rows(output):
        assert row["error"] is None
        assert len(row["texts"]) == 2
        assert row["texts"][0] == row["text"]
        assert row["completion_tokens"] == 12
        assert row["prompt_tokens"] == len(row["prompt"]) + 2
        assert len(row["logprobs"]) == 6
        assert all(place[0]["rank"] >= 1 and place[0]["logprob"] < 0 for place in row["logprobs"])
        assert row["prompt_logprobs"][0] is None
        asked = [place[0]["token"] for place in row["prompt_logprobs"][1:]]
        assert "".join(asked) == f"{row['prompt']}>"
    with pytest.raises(InputError, match="hf_overrides"):
        make_config(tiny_llm, tmp_path, output, hf_overrides="[1]")


def test_modes_of_the_runner_give_the_same_rows(tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path):
    source = make_prompts(17)
    threads, memory = tmp_path / "threads", tmp_path / "memory"
    loads = [
        run_generate(make_config(tiny_llm, source, threads), ["--direct_num_workers=3"]).model_loads,
        run_generate(make_config(tiny_llm, source, memory), ["--direct_running_mode=in_memory"]).model_loads,
    ]
    assert loads == [1, 1]
    assert texts(threads) == texts(memory)
    assert len(texts(threads)) == 17


def test_another_run_is_not_written_into_the_same_directory(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    source = make_prompts(3)
    run_generate(make_config(tiny_llm, source, output))
    with pytest.raises(OutputError, match="max_tokens was 6 and is 7"):
        run_generate(make_config(tiny_llm, source, output, max_tokens=7))
    with pytest.raises(OutputError, match="the model was"):
        run_generate(make_config("demo:smollm2-135m", source, output))
    source.write_text(source.read_text() + '{"prompt": "more"}\n')
    with pytest.raises(OutputError, match=r"prompts\.jsonl"):
        run_generate(make_config(tiny_llm, source, output))
    assert len(read_rows(output)) == 3


def test_what_cannot_work_is_refused_in_one_line_before_the_run(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    source = make_prompts(3)
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "thesis.txt").write_text("mine")
    file = tmp_path / "file"
    file.write_text("")
    new = tmp_path / "new"
    cases: list[tuple[type[Exception], str, GenerateConfig]] = [
        (InputError, "no input file matches", make_config(tiny_llm, tmp_path / "*.parquet", new)),
        (OutputError, "thesis.txt", make_config(tiny_llm, source, occupied)),
        (OutputError, "is a file", make_config(tiny_llm, source, file)),
        (OutputError, "is a file", make_config(tiny_llm, source, file / "below")),
        (OutputError, "cannot write", make_config(tiny_llm, source, Path("/proc/headrace"))),
        (ModelError, "absent", make_config(str(tmp_path / "absent"), source, new)),
        (ModelError, "nothing-like-this", make_config("demo:nothing-like-this", source, new)),
        (ModelError, "whisper", make_config("demo:whisper-tiny.en", source, new)),
        (ConfigError, "max_model_len is 4096", make_config(tiny_llm, source, new, max_model_len=4096)),
        (InputError, "top_p", make_config(tiny_llm, source, new, top_p=1.5)),
        (ConfigError, "token id 2000000 ", make_config(tiny_llm, source, new, stop_token_ids=(2_000_000,))),
    ]
    for kind, words, config in cases:
        with pytest.raises(kind, match=words) as caught:
            run_generate(config)
        assert "\n" not in str(caught.value)
    assert not new.exists()
    assert [path.name for path in occupied.iterdir()] == ["thesis.txt"]


def test_two_runs_do_not_write_into_one_directory_at_a_time(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    config = make_config(tiny_llm, make_prompts(4), tmp_path / "out")
    with (
        claim_output(str(tmp_path / "out")),
        pytest.raises(OutputError, match="another run is writing to"),
    ):
        run_generate(config)
    assert run_generate(config).rows == 4


def test_values_that_are_odd_for_their_column_are_kept(tiny_llm: str, tmp_path: Path):
    source = tmp_path / "table.jsonl"
    source.write_text('{"prompt": "a", "v": 9007199254740993}\n{"prompt": "b", "v": 1.5}\n')
    run_generate(make_config(tiny_llm, source, tmp_path / "out", keep_columns=("v",)))
    assert [row["v"] for row in read_rows(tmp_path / "out")] == [2.0**53, 1.5]


class ClosedEngineWork(GenerateWork):
    """The job with an engine that has stopped."""

    def load(self) -> LLM:
        engine = super().load()
        engine.close()
        return engine


class OddRowWork(GenerateWork):
    """The job with a fault of its own in one row."""

    def submit(self, engine: LLM, row: WorkRow) -> "Future[RequestOutput]":
        if row.key["row"] == 2:
            raise KeyError("odd")
        return super().submit(engine, row)


def test_a_row_that_fails_in_an_unknown_way_does_not_stop_the_rest(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    summary = run_work(OddRowWork(config=make_config(tiny_llm, make_prompts(4), output)))
    assert summary.errors_by_kind == {"unexpected": 1}
    assert [row["error"] for row in read_rows(output)] == [None, None, "KeyError: 'odd'", None]


class ChangedInputWork(GenerateWork):
    """The job whose input grows while it is read."""

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        with open(path, "a") as file:
            file.write('{"prompt": "more"}\n')
        return super().prepare(row, path, source, content)


def test_an_input_that_changes_while_it_is_read_ends_the_run_by_name(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    config = make_config(tiny_llm, make_prompts(4), tmp_path / "out")
    with pytest.raises(RunError, match=r"prompts\.jsonl was changed while it was read"):
        run_work(ChangedInputWork(config=config))
    assert not list((tmp_path / "out").glob("part-*"))


def test_a_dead_engine_ends_the_run_with_what_is_missing(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    output = tmp_path / "out"
    config = make_config(tiny_llm, make_prompts(11), output)
    with pytest.raises(RunError, match=r"0 of 3 parts committed: EngineError: .*stopped") as caught:
        run_work(ClosedEngineWork(config=config))
    assert "\n" not in str(caught.value)
    assert not (output / "__run" / "_SUCCESS").exists()
    assert json.loads((output / "__run" / "run.json").read_text())["state"] == "broken"
    assert run_generate(config).rows == 11
    assert json.loads((output / "__run" / "run.json").read_text())["state"] == "done"


def test_a_part_that_cannot_be_written_ends_the_run(tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path):
    output = tmp_path / "out"
    config = make_config(tiny_llm, make_prompts(11), output)
    run_generate(config)
    part = sorted(output.glob("part-*"))[1]
    part.unlink()
    part.mkdir()  # a rename onto a directory fails
    with pytest.raises(RunError, match=r"1 part with 5 rows of prompts\.jsonl is missing: Is a directory"):
        run_generate(config)
    assert not (output / "__run" / "_SUCCESS").exists()
    part.rmdir()
    assert run_generate(config).rows_run == 5


def test_prompts_and_texts_are_only_in_the_results(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    source = make_prompts(4)
    source.write_text(source.read_text() + '{"prompt": "the canary sings"}\nthe canary is no json\n')
    output = tmp_path / "out"
    caplog.set_level("DEBUG")
    run_generate(make_config(tiny_llm, source, output))
    assert [row["prompt"] for row in read_rows(output)][4] == "the canary sings"
    assert "canary" not in caplog.text
    for path in (output / "__run").rglob("*"):
        assert path.is_dir() or b"canary" not in path.read_bytes()
    for part in output.glob("part-*"):
        metadata = pq.read_schema(part).metadata
        assert not any(b"canary" in value for value in metadata.values())


def test_the_engine_is_closed_when_the_run_is_over(tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path):
    before = sum(thread.name == "headrace-llm" for thread in threading.enumerate())
    run_generate(make_config(tiny_llm, make_prompts(6), tmp_path / "out"))
    assert sum(thread.name == "headrace-llm" for thread in threading.enumerate()) == before


def test_common_readers_see_the_results_alone(tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path):
    output = tmp_path / "out"
    run_generate(make_config(tiny_llm, make_prompts(6), output))
    assert pq.read_table(output).num_rows == 6
    assert len(pd.read_parquet(output)) == 6
    query = f"select count(*) from '{output}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(6,)]
    loaded = datasets.load_dataset(
        "parquet", data_dir=str(output), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.num_rows == 6
    assert loaded.column_names[:3] == ["id", "source", "row"]
