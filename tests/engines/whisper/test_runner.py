"""Windows in slots: what shares the device with a window does not change it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.whisper import WhisperConfig
from headrace.engines.whisper.loading import load
from headrace.engines.whisper.runner import Finished, Job, Runner
from headrace.engines.whisper.tokenizer import DETECT

PROMPTS = ((50258, DETECT, 50359, 50363), (50258, 50261, 50358), (50258, 50259, 50359, 50363))


def make_runner(checkpoint: Checkpoint, **config: Any) -> Runner:
    settings = {"batch_size": 4, "max_length": 20, "decode_burst": 5, **config}
    return load(checkpoint, WhisperConfig(dtype="float32", **settings)).runner()


def windows(count: int) -> list[Job]:
    """Windows of noise with prompts of several lengths; their slots are set later."""
    rng = np.random.default_rng(0)
    jobs = []
    for number in range(count):
        prompt = PROMPTS[number % len(PROMPTS)]
        jobs.append(
            Job(
                slot=0,
                waveform=(rng.normal(size=8_000 * (number + 1)) * 0.1).astype(np.float32),
                prompt=prompt,
                with_timestamps=len(prompt) == 3,
                number=number,
            )
        )
    return jobs


def in_slot(job: Job, slot: int) -> Job:
    return Job(
        slot=slot,
        waveform=job.waveform,
        prompt=job.prompt,
        with_timestamps=job.with_timestamps,
        number=job.number,
    )


def run(runner: Runner, jobs: list[Job]) -> list[tuple]:
    """What each window gave, refilling slots as they become free."""
    waiting, free, done = list(jobs), list(range(runner.num_slots)), {}
    while len(done) < len(jobs):
        while waiting and free:
            taken = [(waiting.pop(0), free.pop(0)) for _ in range(min(len(waiting), len(free)))]
            for start in range(0, len(taken), runner.encoder_batch):
                runner.admit([in_slot(*pair) for pair in taken[start : start + runner.encoder_batch]])
        for finished in runner.decode(can_refill=bool(waiting)):
            done[finished.job.number] = finished
            free.append(finished.job.slot)
    return [outcome(done[job.number]) for job in jobs]


def outcome(finished: Finished) -> tuple:
    return (finished.token_ids, finished.language_token, finished.with_timestamps, finished.ended)


@pytest.fixture
def checkpoint(random_whisper) -> Checkpoint:
    return random_whisper(num_mels=80)


@pytest.mark.slow
def test_tokens_depend_on_no_size_of_the_machinery(checkpoint: Checkpoint):
    jobs = windows(7)
    reference = run(make_runner(checkpoint, batch_size=2, decode_burst=1), jobs)
    assert len({tokens for tokens, *_ in reference}) > 1
    for config in ({"decode_burst": 16, "encoder_batch": 2}, {"batch_size": 12}):
        assert run(make_runner(checkpoint, **config), jobs) == reference, config


def test_a_row_ends_at_its_limit(random_runner: Runner):
    finished = finish(random_runner, windows(1)[0])
    prompt = len(finished.job.prompt)
    assert finished.ended or prompt + finished.num_tokens == 20


def test_a_restart_drops_notimestamps_and_keeps_the_language(random_runner: Runner):
    runner = random_runner
    (job,) = windows(1)
    assert job.num_forced == 3
    first = finish(runner, job)
    runner.restart(first.job, 0.0)
    again = finish(runner)
    assert again.with_timestamps
    assert again.language_token == first.language_token
    assert again.token_ids[0] >= 50364
    direct = Job(
        slot=1,
        waveform=job.waveform,
        prompt=(50258, first.language_token, 50359),
        with_timestamps=True,
        number=0,
    )
    assert finish(runner, direct).token_ids == again.token_ids


@pytest.mark.slow
def test_a_sampled_restart_depends_on_seed_and_number_alone(checkpoint: Checkpoint):
    def sampled(runner: Runner, slot: int, number: int) -> tuple[int, ...]:
        job = in_slot(windows(2)[1], slot)
        job = Job(slot=slot, waveform=job.waveform, prompt=job.prompt, with_timestamps=True, number=number)
        runner.restart(finish(runner, job).job, 1.5)
        return finish(runner).token_ids

    runner = make_runner(checkpoint)
    reference = sampled(runner, 0, 7)
    assert sampled(runner, 2, 7) == reference
    assert sampled(make_runner(checkpoint, batch_size=2, decode_burst=2), 1, 7) == reference
    assert sampled(runner, 0, 8) != reference
    assert sampled(make_runner(checkpoint, seed=1), 0, 7) != reference


def test_a_stopped_slot_can_be_used_again(random_runner: Runner):
    runner = random_runner
    first, second = windows(2)
    reference = finish(runner, second)
    runner.admit([first])
    runner.stop(0)
    assert outcome(finish(runner, second)) == outcome(reference)


def test_a_short_window_takes_a_short_context_where_it_may(random_runner: Runner):
    runner = random_runner
    (job,) = windows(1)
    fitted = replace(job, may_fit=True)
    before = runner.counters["encoded_frames"]
    first = finish(runner, fitted)
    assert runner.counters["encoded_frames"] - before == 512
    assert runner.is_fitted(first.job)
    whole = finish(runner, replace(first.job, may_fit=False))
    assert runner.counters["encoded_frames"] - before == 512 + 1500
    assert outcome(whole) == outcome(finish(runner, job))
    assert not runner.is_fitted(replace(fitted, waveform=np.zeros(13 * 16_000, np.float32)))


def test_what_lies_past_a_short_context_is_not_looked_at(random_runner: Runner):
    """A slot that held a whole window has its last frames still, in which no row may look."""
    runner = random_runner
    job, loud = windows(2)
    fitted = replace(job, may_fit=True)
    reference = finish(runner, fitted)
    finish(runner, replace(loud, waveform=np.tile(loud.waveform, 20)))
    assert outcome(finish(runner, fitted)) == outcome(reference)
    tokens = [*fitted.prompt[:1], 50259, *fitted.prompt[2:], 5, 6, 7]
    np.testing.assert_array_less(0, runner.align(fitted, tokens).probability[:6])


def test_zeros_after_the_audio_are_heard_and_a_full_window_has_none(random_runner: Runner):
    (short,) = windows(1)
    long = replace(short, waveform=np.resize(short.waveform, 30 * 16_000))
    logprobs = [
        finish(random_runner, replace(job, window_fill=fill)).sum_logprob
        for job in (short, long)
        for fill in ("silence", "zeros")
    ]
    assert logprobs[0] != logprobs[1]
    assert logprobs[2] == logprobs[3]


def finish(runner: Runner, job: Job | None = None) -> Finished:
    """Runs one window, or the slot that was restarted, to its end."""
    if job is not None:
        runner.admit([job])
    while not (finished := runner.decode(can_refill=False)):
        pass
    (item,) = finished
    return item
