"""Transcripts against references: matching, counting, refusing."""

import json
from pathlib import Path

import pytest

from headrace.jobs.score import main
from headrace.pipelines import InputError
from headrace.pipelines.commit import Footer, write_part
from headrace.pipelines.schemas import transcribe_schema
from headrace.pipelines.scoring import score_run, score_texts
from headrace.pipelines.shards import Shard, ShardFile, cut_chunks


def test_english_is_normalised_and_other_languages_less():
    row = score_texts("a", "Mr. Smith paid 20 dollars!", "mister smith paid $20", "en")
    assert (row.words.errors, row.characters.errors) == (0, 0)
    row = score_texts("a", "Der Hund, er bellt.", "der hund er bellte", "de")
    assert (row.words.errors, row.words.length) == (1, 4)
    assert (row.characters.errors, row.characters.length) == (1, 14)
    assert row.words.percent == 25.0


def test_text_where_none_was_said_counts():
    row = score_texts("a", "", "you", "en")
    assert (row.words.errors, row.words.length, row.words.percent) == (1, 0, 100.0)
    assert score_texts("a", "apple pear", "", "en").words.errors == 2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An output with two recordings, of which the second failed."""
    texts = {"a.wav": "apple pear plum", "d/b.wav": None}
    files = tuple(ShardFile(source=source, size=1) for source in texts)
    shard = Shard(index=0, is_table=False, files=files)
    (chunk,) = cut_chunks([shard], rows_per_part=100, run_fingerprint="run")
    rows = [
        {"id": f"{source}#0", "source": source, "row": 0, "text": text, "quality_flags": []}
        for source, text in texts.items()
    ]
    footer = Footer(
        part=chunk.part_name,
        job="transcribe",
        fingerprint=chunk.fingerprint,
        shard=0,
        chunk=0,
        start=0,
        stop=2,
        rows=2,
        rows_failed=1,
        units=1.0,
        finished_at=1.0,
        wall_s=1.0,
    )
    write_part(str(tmp_path), rows, transcribe_schema(), footer)
    return tmp_path


def references(directory: Path, rows: list[dict]) -> str:
    path = directory / "references.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_are_matched_by_id_source_and_file_name(run: Path, capsys: pytest.CaptureFixture):
    table = references(
        run,
        [
            {"file": "speech/a.wav", "text": "apple pair plum"},
            {"file": "d/b.wav", "text": "cherry"},
            {"file": "c.wav", "text": "nobody transcribed this"},
        ],
    )
    scores = score_run(table, str(run))
    assert [row.id for row in scores.rows] == ["a.wav#0", "d/b.wav#0"]
    assert scores.num_missing == 1
    assert (scores.total("words").errors, scores.total("words").length) == (2, 4)
    assert scores.worst(1)[0].id == "d/b.wav#0"
    assert main([table, str(run), "--show", "1"]) == 0
    shown = capsys.readouterr().out
    assert "50.00 % (2 of 4)" in shown
    assert "d/b.wav" in shown
    assert main([table, str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["word_error_percent"] == 50.0


def test_what_cannot_be_matched_is_refused(run: Path):
    with pytest.raises(InputError, match="--key-column"):
        score_run(references(run, [{"file": "x.wav", "text": "x"}]), str(run))
    with pytest.raises(InputError, match="no column sentence"):
        score_run(references(run, [{"file": "a.wav", "text": "x"}]), str(run), text_column="sentence")
    with pytest.raises(InputError, match="no column"):
        score_run(references(run, [{"name": "a.wav", "text": "x"}]), str(run))
