"""Greedy tokens equal those of transformers + torch in float32 (golden/make_whisper_goldens.py)."""

import json
from pathlib import Path

import pytest

from headrace.audio import load_audio
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.whisper.config import WhisperConfig
from headrace.engines.whisper.loading import load
from headrace.engines.whisper.runner import Finished, Job, Runner
from headrace.engines.whisper.tokenizer import DETECT, WhisperTokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
CLOSE_CALL = 1e-3
"""Two top logits this near to each other may change places; more than two such clips are a fault."""


@pytest.fixture(
    scope="module",
    params=[
        ("tiny_en", 4),
        pytest.param(("tiny_en", 20), marks=pytest.mark.slow),
        pytest.param(("base", 20), marks=pytest.mark.slow),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}-clips",
)
def reference(request: pytest.FixtureRequest) -> tuple[list[dict], WhisperTokenizer, Runner]:
    name, num_clips = request.param
    golden = json.loads((GOLDEN / f"whisper_{name}.json").read_text())
    config = WhisperConfig(dtype="float32", batch_size=num_clips)
    loaded = load(open_checkpoint(golden["model"].split(",")[0]), config)
    return golden["rows"][:num_clips], loaded.tokenizer, loaded.runner()


@pytest.mark.parametrize("mode", ["text", "timestamps", pytest.param("zeros", marks=pytest.mark.slow)])
def test_greedy_tokens_equal_those_of_transformers(reference, mode: str, shared_data: Path):
    rows, tokenizer, runner = reference
    jobs = [_job(slot, row, mode, shared_data) for slot, row in enumerate(rows)]
    differing = []
    for row, got in zip(rows, decode_all(runner, jobs), strict=True):
        want = row[mode]
        start = want if mode == "zeros" else row
        assert got.no_speech_prob == pytest.approx(start["no_speech_prob"], abs=1e-3), row["file"]
        if tokenizer.special.is_multilingual:
            assert tokenizer.language_of(got.language_token) == start["detected_language"]
            assert got.language_prob == pytest.approx(start["language_probability"], abs=1e-3)
        if [*got.token_ids, tokenizer.special.eot][: got.num_tokens] != want["token_ids"]:
            differing.append((row["file"], want["min_gap"], want["min_rule_margin"]))
            continue
        assert got.sum_logprob / got.num_tokens == pytest.approx(want["avg_logprob"], abs=1e-3), row["file"]
    close_calls = [row for row in differing if min(gap for gap in row[1:] if gap is not None) < CLOSE_CALL]
    assert differing == close_calls
    assert len(differing) <= 2


def decode_all(runner: Runner, jobs: list[Job]) -> list[Finished]:
    for job in jobs:
        runner.admit([job])
    finished: dict[int, Finished] = {}
    while len(finished) < len(jobs):
        finished.update({item.job.slot: item for item in runner.decode(can_refill=False)})
    return [finished[job.slot] for job in jobs]


def _job(slot: int, row: dict, mode: str, shared_data: Path) -> Job:
    recording = load_audio(shared_data / "speech" / row["file"])
    assert len(recording.waveform) == row["num_samples"]
    prompt = list(row[mode]["prompt_token_ids"])
    if "detected_language" in row:
        prompt[1] = DETECT
    return Job(
        slot=slot,
        waveform=recording.waveform,
        prompt=tuple(prompt),
        with_timestamps=mode != "text",
        number=0,
        window_fill="zeros" if mode == "zeros" else "silence",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "timestamps", "patience"])
def test_the_beam_search_is_that_of_openai_over_transformers(name: str, shared_data: Path):
    """Its rule over the logits of transformers + torch (golden/make_whisper_beam_goldens.py)."""
    golden = json.loads((GOLDEN / "whisper_tiny_en_beams.json").read_text())
    search, rows = dict(golden["searches"][name]), golden["rows"]
    mode = "timestamps" if search.pop("timestamps") else "text"
    config = WhisperConfig(dtype="float32", batch_size=len(rows), **search)
    runner = load(open_checkpoint(golden["model"].split(",")[0]), config).runner()
    jobs = [_job(slot, {**row, mode: row[name]}, mode, shared_data) for slot, row in enumerate(rows)]
    differing = []
    for row, got in zip(rows, decode_all(runner, jobs), strict=True):
        want = row[name]
        if list(got.token_ids) != want["token_ids"]:
            differing.append((row["file"], want["gap"]))
            continue
        assert got.sum_logprob == pytest.approx(want["sum_logprob"], abs=2e-2), row["file"]
    assert differing == [row for row in differing if row[1] is not None and row[1] < CLOSE_CALL]
    assert len(differing) <= 1
