"""Whole runs of a real Whisper model: files, tables of paths, tables of bytes, and what is no recording."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headrace.engines import ConfigError, ModelError
from headrace.pipelines import InputError, TranscribeConfig, run_transcribe
from headrace.pipelines.transcribe import whisper_config

CLIP = "speech/DeepSpeech__LDC93S1.wav"


@pytest.fixture
def recordings(shared_data: Path, tmp_path: Path) -> Path:
    """A directory of speech, silence, a header without samples, and an archive under a false name."""
    directory = tmp_path / "set" / "recordings"
    directory.mkdir(parents=True)
    for name in (CLIP, "edge/whisper-timestamped__empty.wav", "edge/pocketsphinx__null.wav"):
        shutil.copy(shared_data / name, directory)
    shutil.copy(shared_data / "edge/wenet__shards_000000000.tar", directory / "wenet__shards_000000000.wav")
    return directory


@pytest.fixture
def tables(recordings: Path) -> Path:
    """The recordings again, as tables of paths, of bytes and of Audio structs."""
    directory = recordings.with_name("tables")
    directory.mkdir()
    names = sorted(path.name for path in recordings.iterdir())
    lines = [
        json.dumps({"key": n, "file": f"../recordings/{name}", "text": name}) for n, name in enumerate(names)
    ]
    faults = ['{"key": 9}', '{"key": 10, "file": "none.wav"}']
    (directory / "paths.jsonl").write_text("\n".join([*lines, *faults]))
    content = [(recordings / name).read_bytes() for name in names]
    pq.write_table(pa.table({"audio": content, "key": range(4), "text": names}), directory / "bytes.parquet")
    structs = pa.table(
        {"audio": [{"bytes": each, "path": None} for each in content[:2]], "key": [0, 1], "text": names[:2]}
    )
    pq.write_table(structs, directory / "structs.parquet")
    return directory


def make_config(source: Path | str, output: Path, **options: Any) -> TranscribeConfig:
    common = {"model": "demo:whisper-tiny.en", "dtype": "float32", "batch_size": 4, "deterministic": True}
    return TranscribeConfig(**{**common, "inputs": (str(source),), "output": str(output), **options})


def read_rows(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output).to_table().sort_by([("source", "ascending"), ("row", "ascending")]).to_pylist()


def test_recordings_in_any_form_give_the_same_rows(recordings: Path, tables: Path, tmp_path: Path):
    output = tmp_path / "out"
    options = {"id_column": "key", "keep_columns": ("text",), "with_columns": ("token_ids",)}
    config = make_config(recordings, output, rows_per_part=3, **options)
    summary = run_transcribe(replace(config, inputs=(str(recordings), f"{tables}/*.*")))
    assert summary.model_loads == 1
    rows = read_rows(output)
    speech, null, archive, silence = rows[:4]
    assert [row["row"] for row in (speech, null, archive, silence)] == [0, 0, 0, 0]
    assert "suit in greasy" in speech["text"]
    assert speech["duration_s"] == pytest.approx(2.92, abs=0.01)
    assert speech["segments"][0]["text"].strip() in speech["text"]
    assert len(speech["token_ids"]) == len(speech["segments"])
    assert (silence["text"], silence["error"], silence["vad_dropped_s"]) == ("", None, None)
    assert null["error"] is not None
    assert null["text"] is None
    assert null["segments"] is None
    assert "archive" in archive["error"]
    assert (summary.rows, summary.rows_failed, summary.unit) == (16, 9, "audio seconds")
    assert summary.units == pytest.approx(4 * speech["duration_s"] + 3 * silence["duration_s"])

    names = sorted(path.name for path in recordings.iterdir())
    assert [(row["source"], row["id"]) for row in rows[4:]] == [
        *(("tables/bytes.parquet", str(n)) for n in range(4)),
        *(("tables/paths.jsonl", str(n)) for n in (0, 1, 2, 3, 9, 10)),
        *(("tables/structs.parquet", str(n)) for n in range(2)),
    ]
    wanted = [speech["text"], None, None, ""]
    assert [row["text"] for row in rows[4:]] == [*wanted, *wanted, None, None, *wanted[:2]]
    assert [row["input_text"] for row in rows[4:8]] == names
    assert "'file' has no value" in rows[12]["error"]
    assert "none.wav" in rows[13]["error"]


def test_options_that_the_engine_refuses_are_refused_before_the_run(recordings: Path, tmp_path: Path):
    with pytest.raises(InputError, match="stride"):
        run_transcribe(make_config(recordings, tmp_path / "out", chunk_length_s=10.0, stride_length_s=6.0))
    with pytest.raises(ConfigError, match="knows English only"):
        run_transcribe(make_config(recordings, tmp_path / "out", language="de"))
    with pytest.raises(ModelError, match="model_type"):
        run_transcribe(make_config(recordings, tmp_path / "out", model="demo:smollm2-135m"))
    assert not (tmp_path / "out").exists()


def test_what_fills_a_window_reaches_the_engine(recordings: Path, tmp_path: Path):
    assert whisper_config(make_config(recordings, tmp_path)).window_fill == "silence"
    assert whisper_config(make_config(recordings, tmp_path, window_fill="zeros")).window_fill == "zeros"


@pytest.mark.slow
def test_a_text_and_its_translation_are_columns_of_one_row(shared_data: Path, tmp_path: Path):
    clips = (json.loads(line) for line in (shared_data / "speech.jsonl").read_text().splitlines())
    german = next(row["file"] for row in clips if row["language"] == "de")
    rows = [
        {"audio": str(shared_data / german), "task": task} for task in ("both", "transcribe", "translate")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = make_config(tmp_path / "rows.jsonl", tmp_path / "out", model="demo:whisper-base", write=("srt",))
    run_transcribe(replace(config, task_column="task"))
    both, transcribed, translated = read_rows(tmp_path / "out")
    assert both["text"] == transcribed["text"]
    assert both["translation"] == translated["text"] != both["text"]
    assert (transcribed["translation"], translated["translation_segments"]) == (None, None)
    assert "".join(each["text"] for each in both["translation_segments"]).strip() == both["translation"]
    written = {path.name for path in (tmp_path / "out" / "__transcripts").iterdir()}
    assert "rows.jsonl#0.translation.srt" in written
