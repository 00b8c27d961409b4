"""Transcripts as files beside the results, which readers of the results pass over."""

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.engines.whisper import Segment, Word
from headrace.pipelines import InputError, TranscribeConfig
from headrace.pipelines.transcripts import write_transcript

SEGMENT = Segment(
    start_s=0.0,
    end_s=1.5,
    text=" Hello there.",
    avg_logprob=-0.1,
    no_speech_prob=0.0,
    compression_ratio=1.0,
    temperature=0.0,
    words=(Word(" Hello", 0.0, 0.5, 0.9), Word(" there.", 0.5, 1.5, 0.8)),
)


def config(output: Path, **options) -> TranscribeConfig:
    return TranscribeConfig(inputs=("x",), output=str(output), model="m", **options)


def test_each_format_is_a_file_and_a_second_time_changes_nothing(tmp_path: Path):
    wanted = config(tmp_path, write=("txt", "srt", "json"), max_line_width=8)
    for _ in range(2):
        write_transcript(wanted, "talks/one.wav#0", [SEGMENT])
    folder = tmp_path / "__transcripts" / "talks"
    assert sorted(path.name for path in folder.iterdir()) == ["one.wav.json", "one.wav.srt", "one.wav.txt"]
    assert (folder / "one.wav.txt").read_text() == "Hello there.\n"
    assert "Hello\nthere." in (folder / "one.wav.srt").read_text()
    assert json.loads((folder / "one.wav.json").read_text())[0]["words"][1]["text"] == " there."


def test_names_stay_below_the_output(tmp_path: Path):
    wanted = config(tmp_path, write=("txt",))
    for name in ("../../up.wav#0", "/abs.wav#0", "t.jsonl#0", "t.jsonl#1"):
        write_transcript(wanted, name, [SEGMENT])
    found = sorted(path.name for path in (tmp_path / "__transcripts").iterdir())
    assert found == ["abs.wav.txt", "t.jsonl#0.txt", "t.jsonl#1.txt", "up.wav.txt"]


def test_readers_of_the_results_pass_over_them(tmp_path: Path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "part-0.parquet")
    write_transcript(config(tmp_path, write=("json",)), "a.wav#0", [SEGMENT])
    assert pq.read_table(tmp_path).num_rows == 1
    read = datasets.load_dataset(
        "parquet", data_dir=str(tmp_path), split="train", cache_dir=str(tmp_path / "__cache")
    )
    assert list(read["text"]) == ["a"]


def test_line_options_without_subtitles_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="srt or vtt"):
        config(tmp_path, max_line_width=40)
    with pytest.raises(InputError, match="docx"):
        config(tmp_path, write=("docx",))
