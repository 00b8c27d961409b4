"""Languages are found, kept apart, and translated, with whisper-base."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.whisper import TranscribeOptions, WhisperConfig, WhisperEngine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(whisper_base_checkpoint: Checkpoint) -> Iterator[WhisperEngine]:
    with WhisperEngine(whisper_base_checkpoint, WhisperConfig(batch_size=8)) as engine:
        yield engine


@pytest.fixture(scope="module")
def foreign(shared_data: Path) -> list[dict]:
    rows = [json.loads(line) for line in (shared_data / "speech.jsonl").read_text().splitlines()]
    return [{**row, "path": shared_data / row["file"]} for row in rows if row["language"] != "en"]


def test_many_languages_in_one_batch_are_all_found(base: WhisperEngine, foreign: list[dict]):
    rows = [row for row in foreign if row["seconds"] > 5]
    assert len({row["language"] for row in rows}) >= 8
    results = base.transcribe([row["path"] for row in rows])
    assert [result["language"] for result in results] == [row["language"] for row in rows]
    assert all(result["language_probability"] > 0.5 for result in results)


def test_one_recording_does_not_give_its_language_to_the_next(base: WhisperEngine, foreign: list[dict]):
    german = next(row for row in foreign if row["language"] == "de")
    spanish = next(row for row in foreign if row["language"] == "es")
    fresh = base.transcribe(str(spanish["path"]))
    base.transcribe(str(german["path"]), language="de")
    again = base.transcribe(str(spanish["path"]))
    assert (fresh["language"], fresh["text"]) == (again["language"], again["text"])


def test_a_row_may_name_its_language_and_task(base: WhisperEngine, foreign: list[dict]):
    german = next(row for row in foreign if row["language"] == "de")
    options = TranscribeOptions(language="german", task="translate")
    row = base.submit(german["path"], options, request_id="translate").result()
    assert (row.language, row.language_probability) == ("de", None)
    words = set(row.text.lower().split())
    assert {"the", "of"} <= words
    assert not words & {"und", "das", "die", "der"}
