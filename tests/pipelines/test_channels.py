"""Telephone calls: each channel is a row of its own, once, through resume and retries."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest
import soundfile

from headrace.audio import load_audio
from headrace.pipelines import InputError, TranscribeConfig, run_transcribe
from headrace.pipelines.calls import TranscribeCall
from headrace.pipelines.model_handler import TranscribeModelHandler
from headrace.pipelines.segments import cut_segment

CLIP = "speech/TTS__LJ001-0008.wav"
SAID = "has never been surpassed"


def write_call(path: Path, clip: Path) -> None:
    sound = load_audio(clip).waveform
    soundfile.write(path, np.stack([np.zeros_like(sound), sound], axis=1), 16_000)


def rows_of(output: Path) -> list[dict]:
    table = ds.dataset(output).to_table()
    return table.sort_by([("source", "ascending"), ("row", "ascending"), ("id", "ascending")]).to_pylist()


def test_each_channel_of_each_row_is_there_once(shared_data: Path, tmp_path: Path):
    data, output = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    write_call(data / "call.wav", shared_data / CLIP)
    rows = [
        {"name": "a", "audio": "call.wav"},
        {"name": "b", "audio": "late.wav"},
        {"name": "c", "audio": "call.wav", "offset": 0.1},
        {"name": "d", "audio": str(shared_data / CLIP)},
    ]
    (data / "calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TranscribeConfig(
        inputs=(str(data / "calls.jsonl"),),
        output=str(output),
        model="demo:whisper-tiny.en",
        batch_size=4,
        channels="split",
        id_column="name",
        keep_columns=("name",),
        write=("txt",),
    )
    summary = run_transcribe(config)
    assert (summary.rows, summary.rows_failed) == (6, 1)
    assert run_transcribe(config).rows_run == 0
    found = [(row["id"], row["row"], row["channel"], (row["text"] or "").lower()) for row in rows_of(output)]
    said = [text.strip(" .") for *_, text in found]
    assert [each[:3] for each in found] == [
        ("a#ch0", 0, 0),
        ("a#ch1", 0, 1),
        ("b", 1, None),
        ("c#ch0", 2, 0),
        ("c#ch1", 2, 1),
        ("d#ch0", 3, 0),
    ]
    assert said == ["", SAID, "", "", SAID, SAID]
    before = [row for row in rows_of(output) if row["id"] != "b"]
    write_call(data / "late.wav", shared_data / CLIP)
    again = run_transcribe(replace(config, retry_errors=True))
    assert (again.rows, again.rows_failed) == (7, 0)
    after = rows_of(output)
    assert [row for row in after if row["name"] != "b"] == before
    assert [(row["id"], row["channel"]) for row in after if row["name"] == "b"] == [
        ("b#ch0", 0),
        ("b#ch1", 1),
    ]
    written = sorted(path.name for path in (output / "__transcripts").iterdir())
    assert written[:3] == ["calls.jsonl#0.ch0.txt", "calls.jsonl#0.ch1.txt", "calls.jsonl#1.ch0.txt"]


def test_rows_of_a_pipeline_give_a_result_a_channel(shared_data: Path, tmp_path: Path):
    write_call(tmp_path / "call.wav", shared_data / CLIP)
    call = TranscribeCall.of("demo:whisper-tiny.en", {"channels": "split", "batch_size": 4})
    engine = call.load()
    values = {"audio": str(tmp_path / "call.wav")}
    results = call.results(values, call.submit(engine, values, "one").result())
    assert [(each.channel, each.text.lower().strip(" .")) for each in results] == [(0, ""), (1, SAID)]
    (failed,) = call.results(values, call.submit(engine, {"audio": b"none"}, "two").result())
    assert failed.message
    engine.close()


def test_where_there_is_one_result_a_row_split_channels_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="one of them"):
        TranscribeConfig(inputs=("x",), output="y", model="m", channels="split", channel=0)
    with pytest.raises(InputError, match="take Transcribe"):
        TranscribeModelHandler("demo:whisper-tiny.en", channels="split")


def test_a_stretch_keeps_its_channels(tmp_path: Path):
    sound = np.stack([np.full(16_000, 0.25), np.full(16_000, -0.5)], axis=1).astype(np.float32)
    for name in ("call.wav", "call.ogg"):
        soundfile.write(tmp_path / name, sound, 16_000)
        cut = cut_segment(str(tmp_path / name), (0.25, 0.5), channels=True)
        assert cut["array"].shape == (2, 8_000)
        np.testing.assert_allclose(cut["array"][:, 4_000], [0.25, -0.5], atol=0.02)
        mixed = cut_segment(str(tmp_path / name), (0.25, 0.5))
        np.testing.assert_allclose(mixed["array"][4_000], -0.125, atol=0.02)
