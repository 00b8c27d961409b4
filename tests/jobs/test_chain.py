"""`headrace chain` from recordings to summaries with the demo models, killed midway and taken up again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from headrace.jobs.cli import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "talks.yaml"


def test_faults_of_a_recipe_are_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("output: out\nstages: [{name: a, job: sing}]")
    for path in (recipe, tmp_path / "none.yaml"):
        assert main(["chain", str(path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("headrace: ")
        assert err.count("\n") == 1


@pytest.mark.slow
def test_ten_recordings_become_summaries_over_a_kill(shared_data: Path, tmp_path: Path):
    names = sorted((shared_data / "speech").glob("TTS__LJ001-*.wav"))[:10]
    folder = tmp_path / "recordings"
    folder.mkdir()
    for path in names:
        (folder / path.name).symlink_to(path)
    text = (
        EXAMPLE.read_text()
        .replace("recordings/*", f"{folder}/*")
        .replace("output: talks", f"output: {tmp_path}/talks")
    )
    recipe = tmp_path / "talks.yaml"
    recipe.write_text(
        text.replace("rows_per_part: 10", "rows_per_part: 2").replace("max_tokens: 48", "max_tokens: 16")
    )
    command = [sys.executable, "-m", "headrace.jobs", "chain", str(recipe)]
    environment = {**os.environ, "XLA_FLAGS": ""}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        while not list((tmp_path / "talks").glob("summaries/part-*")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "talks").glob("*/part-*")}
    assert 2 <= len(before) < 10
    subprocess.run(command, check=True, env=environment, timeout=500)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "talks").glob("*/part-*")}
    assert len(after) == 10
    assert {path: after[path] for path in before} == before
    rows = {
        name: ds.dataset(tmp_path / "talks" / name).to_table().sort_by("source").to_pylist()
        for name in ("transcripts", "summaries")
    }
    assert [row["source"] for row in rows["transcripts"]] == [path.name for path in names]
    assert [row["id"] for row in rows["summaries"]] == [row["id"] for row in rows["transcripts"]]
    for transcript, summary in zip(rows["transcripts"], rows["summaries"], strict=True):
        assert transcript["text"]
        assert summary["input_text"] == transcript["text"]
        assert transcript["text"] in summary["prompt"]
        assert summary["text"]
        assert summary["error"] is None
