"""run.json says what was run, without secrets, and tells another run from the same one."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.engines.llm import SchedulerConfig
from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.errors import OutputError
from headrace.pipelines.fingerprint import parameters, run_fingerprint
from headrace.pipelines.run_record import (
    ModelRecord,
    RunRecord,
    differences,
    read_record,
    record_config,
    write_record,
)
from headrace.pipelines.shards import Shard, ShardFile

MODEL = ModelRecord(spec="demo:x", format="gguf", revision=None, fingerprint="abc")
CONFIG = GenerateConfig(inputs=("a.jsonl",), output="out", model="demo:x")
FEW = SchedulerConfig(max_num_seqs=4)


def make_record(config: GenerateConfig | TranscribeConfig = CONFIG) -> RunRecord:
    files = (ShardFile(source="a", size=1), ShardFile(source="b", size=None, gone=True))
    return RunRecord(
        job="generate",
        config=record_config(config),
        parameters=parameters(config),
        model=MODEL,
        root="/data",
        shards=(
            Shard(index=0, is_table=False, files=files),
            Shard(index=1, is_table=True, files=files[:1], table_rows=4),
        ),
        kept=pa.schema({"n": pa.list_(pa.int8())}),
        totals={"rows": 3},
    )


def test_a_record_comes_back_as_it_was_written(tmp_path: Path):
    assert read_record(str(tmp_path)) is None
    write_record(str(tmp_path), make_record())
    assert read_record(str(tmp_path)) == make_record()


def test_a_record_of_another_version_or_a_broken_one_is_refused(tmp_path: Path):
    write_record(str(tmp_path), make_record())
    path = tmp_path / "__run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(OutputError, match="version 99"):
        read_record(str(tmp_path))
    path.write_text("{")
    with pytest.raises(OutputError, match=r"run\.json"):
        read_record(str(tmp_path))


def test_signatures_of_addresses_are_not_recorded():
    config = TranscribeConfig(inputs=("https://host/a.wav?X-Sig=secret",), output="out", model="m")
    assert record_config(config)["inputs"] == ["https://host/a.wav"]


def test_what_differs_is_named_without_the_users_texts():
    record = make_record(replace(CONFIG, system="be kind to the canary"))
    assert differences(record, "generate", MODEL, record.parameters) == []
    changed = replace(CONFIG, temperature=0.5, system="be brief", stop=("a",))
    found = differences(record, "generate", MODEL, parameters(changed))
    assert found == ['stop was [] and is ["a"]', "system is another", "temperature was 0.0 and is 0.5"]
    other = replace(MODEL, spec="demo:y", fingerprint="def")
    assert differences(record, "generate", other, record.parameters) == ["the model was demo:x and is demo:y"]
    same_name = replace(MODEL, fingerprint="def")
    assert "files" in differences(record, "generate", same_name, record.parameters)[0]
    assert differences(record, "transcribe", MODEL, {}) == ["the job was generate and is transcribe"]


def test_a_run_may_go_on_with_other_batches_and_places_but_not_other_parameters():
    first = run_fingerprint("generate", "abc", CONFIG)
    same = replace(CONFIG, inputs=("b",), output="x", fail_on_row_errors=True, scheduler=FEW)
    assert run_fingerprint("generate", "abc", same) == first
    assert run_fingerprint("generate", "abc", replace(CONFIG, max_tokens=3)) != first
    assert run_fingerprint("generate", "abd", CONFIG) != first
    fixed = replace(CONFIG, deterministic=True)
    smaller = replace(fixed, scheduler=FEW)
    assert run_fingerprint("generate", "abc", fixed) != run_fingerprint("generate", "abc", smaller)
