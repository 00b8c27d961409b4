"""Outputs of runs as headrace writes them, with figures that tests know; no engine has run."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.pipelines.commit import Footer, write_part
from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.fingerprint import parameters
from headrace.pipelines.output_directory import mark_success
from headrace.pipelines.run_record import ModelRecord, RunRecord, record_config, write_record
from headrace.pipelines.schemas import generate_schema, transcribe_schema
from headrace.pipelines.shards import Shard, ShardFile, cut_chunks

MODEL = ModelRecord(spec="demo:tiny", format="gguf", revision=None, fingerprint="abc")


def make_generate_run(
    directory: Path, *, state: str, parts: int = 4, name: str = "out", text: str = "answer"
) -> str:
    """A run of 40 prompts in 4 parts of 10 s each, of which `parts` are there; two rows have failed."""
    output = str(directory / name)
    config = GenerateConfig(
        inputs=("https://host/prompts.jsonl?X-Signature=canary",),
        output=output,
        model="demo:tiny",
        system="canary-system",
        rows_per_part=10,
    )
    shard = Shard(index=0, is_table=True, files=(ShardFile(source="prompts.jsonl", size=1),), table_rows=40)
    started = time.time() - 100
    for chunk in list(cut_chunks([shard], rows_per_part=10, run_fingerprint="run"))[:parts]:
        rows = [_answer(number, text) for number in range(chunk.start, chunk.stop)]
        failed = sum(row["error"] is not None for row in rows)
        tokens = float(sum(row.get("completion_tokens", 0) for row in rows))
        count = chunk.index + 1
        footer = Footer(
            part=chunk.part_name,
            job="generate",
            fingerprint=chunk.fingerprint,
            shard=0,
            chunk=chunk.index,
            start=chunk.start,
            stop=chunk.stop,
            rows=10,
            rows_failed=failed,
            errors={"prompt_too_long": failed} if failed else {},
            units=tokens,
            metrics={"busy_s": 80.0},
            engine={"slot_steps": 400.0 * count, "busy_slot_steps": 300.0 * count}
            | {"page_steps": 1000.0 * count, "busy_page_steps": 100.0 * count}
            | {"draft_tokens": 80.0 * count, "accepted_tokens": 60.0 * count}
            | {"speculative_steps": 40.0 * count, "speculative_s": 2.0, "without_speculation_s": 3.0},
            device="1 x cpu",
            worker="host:1",
            finished_at=started + 10 * count,
            wall_s=10.0,
        )
        write_part(output, rows, generate_schema(), footer)
    _write_record(output, config, "generate", shard, state, started)
    return output


def make_transcribe_run(directory: Path, recordings: Path) -> str:
    """A finished run over the recordings of a directory, each of one second."""
    output = str(directory / "transcripts")
    config = TranscribeConfig(inputs=(str(recordings),), output=output, model="demo:tiny")
    files = tuple(ShardFile(source=path.name, size=1) for path in sorted(recordings.iterdir()))
    shard = Shard(index=0, is_table=False, files=files)
    chunk = next(iter(cut_chunks([shard], rows_per_part=100, run_fingerprint="run")))
    started = time.time() - 100
    rows = [_transcript(file.source) for file in files]
    footer = Footer(
        part=chunk.part_name,
        job="transcribe",
        fingerprint=chunk.fingerprint,
        shard=0,
        chunk=0,
        start=0,
        stop=len(files),
        rows=len(files),
        rows_failed=0,
        units=float(len(files)),
        finished_at=started + 10,
        wall_s=10.0,
    )
    write_part(output, rows, transcribe_schema(), footer)
    record = _write_record(output, config, "transcribe", shard, "done", started)
    write_record(output, replace(record, root=str(recordings)))
    return output


def _write_record(
    output: str, config: GenerateConfig | TranscribeConfig, job: str, shard: Shard, state: str, started: float
) -> RunRecord:
    launch: dict[str, Any] = {"started_at": started, "parts_reused": 0, "parts_to_do": 4}
    if state == "done":
        launch |= {"wall_s": 40.0, "units": 1000.0}
    record = RunRecord(
        job=job,
        state=state,
        config=record_config(config),
        parameters=parameters(config),
        model=MODEL,
        versions={"python": "3"},
        devices=("1 x cpu",),
        root="",
        shards=(shard,),
        launches=(launch,),
    )
    write_record(output, record)
    if state == "done":
        mark_success(output)
    return record


def _answer(number: int, text: str) -> dict[str, Any]:
    key = {"id": f"prompts.jsonl#{number}", "source": "prompts.jsonl", "row": number}
    if number in (7, 23):
        error = "prompt has 900 tokens: see https://host/x?X-Signature=canary"
        return {**key, "prompt": "p", "finish_reason": "error", "quality_flags": [], "error": error}
    return {
        **key,
        "prompt": f"canary-prompt <script>alert({number})</script>",
        "text": f"{text} {number}",
        "finish_reason": "stop",
        "prompt_tokens": 5 + number,
        "cached_tokens": 0,
        "completion_tokens": 10 + number,
        "quality_flags": [],
        "error": None,
        "queue_s": 0.1,
        "ttft_s": 0.2 + number / 50,
        "latency_s": 1.0 + number / 10,
    }


def _transcript(source: str) -> dict[str, Any]:
    segment = {"start_s": 0.1, "end_s": 0.9, "text": " hello", "avg_logprob": -0.1, "no_speech_prob": 0.0}
    segment |= {"compression_ratio": 1.0, "temperature": 0.0, "words": []}
    return {
        "id": f"{source}#0",
        "source": source,
        "row": 0,
        "text": "hello",
        "language": "en",
        "duration_s": 1.0,
        "segments": [segment],
        "num_tokens": 3,
        "quality_flags": [],
        "error": None,
        "queue_s": 0.1,
        "latency_s": 1.0,
    }
