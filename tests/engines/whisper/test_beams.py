"""Beam search and draws: the texts of the plain rule, whatever shares the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.audio import log_mel_batch
from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ConfigError
from headrace.engines.whisper import WhisperConfig
from headrace.engines.whisper.attention import Frames
from headrace.engines.whisper.beams import Beams, Text, choose_beams, likeliest, no_texts
from headrace.engines.whisper.loading import LoadedModel, load
from headrace.engines.whisper.logit_rules import History
from headrace.engines.whisper.model import Read
from headrace.engines.whisper.runner import Finished, Job, Runner

PROMPT = (50258, 50259, 50359, 50363)
SIZE, LIMIT = 3, 14


@pytest.fixture(scope="module")
def checkpoint(random_whisper) -> Checkpoint:
    """Random weights that heed the audio, and whose end token is about as likely as the likeliest others."""
    base = random_whisper(num_mels=80)
    names = ("embed_tokens.weight", "embed_positions.weight", "layers.0.encoder_attn.out_proj.weight")
    tensors = {
        f"model.decoder.{name}": base.tensor(f"model.decoder.{name}") * np.float32(scale)
        for name, scale in zip(names, (4, 4, 30), strict=True)
    }
    end = 3.3 * base.tensor("model.decoder.layer_norm.bias")
    tensors["model.decoder.embed_tokens.weight"][50257] = end
    return random_whisper(num_mels=80, **tensors)


def load_beams(checkpoint: Checkpoint, **config) -> LoadedModel:
    settings = {"beam_size": SIZE, "batch_size": 4, "max_length": LIMIT, "decode_burst": 5, **config}
    return load(checkpoint, WhisperConfig(dtype="float32", deterministic=True, **settings))


def windows(count: int, prompt: tuple[int, ...] = PROMPT) -> list[Job]:
    rng = np.random.default_rng(0)
    return [
        Job(
            slot=number,
            waveform=(rng.normal(size=16_000 * (number + 1)) * 0.1).astype(np.float32),
            prompt=prompt,
            with_timestamps=len(prompt) == 3,
            number=number,
        )
        for number in range(count)
    ]


def finish(runner: Runner, jobs: list[Job]) -> list[Finished]:
    for job in jobs:
        runner.admit([job])
    return wait(runner, len(jobs))


def wait(runner: Runner, count: int) -> list[Finished]:
    done: list[Finished] = []
    while len(done) < count:
        done += runner.decode(can_refill=False)
    return sorted(done, key=lambda finished: finished.job.number)


class PlainSearch:
    """openai/whisper's beam search, one prefix at a time, each from the cache of the one it goes on with."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.model = loaded, loaded.model
        self.listen, self.step, self.ruled = map(
            jax.jit, (self._listen, self.model.decoder.step, self._ruled)
        )

    def begin(self, job: Job) -> None:
        self.job, dims = job, self.loaded.decoding.dims
        waveform = np.zeros((1, dims.window_samples), np.float32)
        waveform[0, : len(job.waveform)] = job.waveform
        frames = Frames(jnp.zeros(1, jnp.int32), jnp.array([dims.num_frames]))
        self.read = Read(self.listen(jnp.asarray(waveform)), frames)
        self.states = {(): (None, self._empty(64))}

    def _listen(self, waveform):
        dims = self.loaded.decoding.dims
        frames = self.model.encoder(log_mel_batch(waveform, dims.num_mels))
        return self.model.decoder.put_frames(self._empty(dims.num_frames), frames, jnp.zeros(1, jnp.int32))

    def _empty(self, length: int):
        layers = self.model.decoder.layers
        width, dtype = self.loaded.decoding.dims.width, self.model.decoder.dtype
        return tuple(layer.backend.empty_tokens(1, length, width, dtype) for layer in layers)

    def logprobs(self, tokens: tuple[int, ...]) -> np.ndarray:
        for count in range(1, len(tokens) + 1):
            if tokens[:count] not in self.states:
                _, caches = self.states[tokens[: count - 1]]
                token, place = jnp.array([tokens[count - 1]]), jnp.array([count - 1])
                self.states[tokens[:count]] = self.step(token, caches, self.read, place)
        logits, _ = self.states[tokens]
        start, special = len(self.job.prompt), self.loaded.decoding.special
        times = [token for token in tokens[start:] if special.is_timestamp(token)]
        history = History(
            num_generated=jnp.array([len(tokens) - start]),
            last=jnp.array([tokens[-1]]),
            second_last=jnp.array([tokens[-2]]),
            last_timestamp=jnp.array([times[-1] if times else -1]),
            with_timestamps=jnp.array([self.job.with_timestamps]),
        )
        return np.asarray(self.ruled(logits, history))

    def _ruled(self, logits, history):
        for rule in self.loaded.decoding.rules:
            logits = rule(logits, history)
        return jax.nn.log_softmax(logits[0])

    def texts(self, job: Job, num_texts: int) -> list[Text]:
        self.begin(job)
        beams = {self.job.prompt: 0.0}
        ended: dict[tuple[int, ...], float] = {}
        eot = self.loaded.decoding.special.eot
        while len(ended) < num_texts and len(next(iter(beams))) < LIMIT:
            scores: dict[tuple[int, ...], float] = {}
            for prefix, score in beams.items():
                logprobs = self.logprobs(prefix)
                for token in np.argsort(-logprobs)[: SIZE + 1]:
                    scores[(*prefix, int(token))] = score + float(logprobs[token])
            beams, leaving = {}, []
            for text in sorted(scores, key=scores.__getitem__, reverse=True):
                if text[-1] == eot:
                    leaving.append(text)
                else:
                    beams[text] = scores[text]
                    if len(beams) == SIZE:
                        break
            for text in leaving[: num_texts - len(ended)]:
                ended[text] = scores[text]
        start = len(self.job.prompt)
        found = [Text(text[start:-1], score, True) for text, score in ended.items()]
        rest = [Text(text[start:], score, False) for text, score in beams.items()]
        return found + rest[: max(SIZE - len(found), 0)]


@pytest.mark.parametrize(
    ("config", "prompt"),
    [
        pytest.param({}, PROMPT, marks=pytest.mark.slow, id="text"),
        pytest.param({}, PROMPT[:3], id="timestamps"),
        pytest.param({"patience": 2.0, "length_penalty": 0.6}, PROMPT, marks=pytest.mark.slow, id="patience"),
    ],
)
def test_the_search_is_that_of_the_plain_rule(checkpoint: Checkpoint, config: dict, prompt: tuple[int, ...]):
    loaded = load_beams(checkpoint, **config)
    jobs = windows(4, prompt)
    got = finish(loaded.runner(), jobs)
    num_texts = round(SIZE * config.get("patience", 1.0))
    search, endings = PlainSearch(loaded), set()
    for job, finished in zip(jobs, got, strict=True):
        texts = search.texts(job, num_texts)
        want = likeliest(texts, config.get("length_penalty"))
        assert finished.token_ids == want.token_ids
        assert finished.ended == want.ended
        np.testing.assert_allclose(finished.sum_logprob, want.sum_logprob, rtol=1e-4)
        endings.add(sum(text.ended for text in texts))
    assert max(endings) > 0


@pytest.mark.slow
def test_a_window_alone_gives_the_texts_that_it_gives_beside_others(checkpoint: Checkpoint):
    together, alone = load_beams(checkpoint).runner(), load_beams(checkpoint, batch_size=1).runner()
    jobs = windows(4)
    got = finish(together, jobs)
    assert len({finished.token_ids for finished in got}) > 1
    for job, finished in zip(jobs, got, strict=True):
        single = Job(slot=0, waveform=job.waveform, prompt=job.prompt, with_timestamps=False, number=0)
        (found,) = finish(alone, [single])
        assert (found.token_ids, found.ended) == (finished.token_ids, finished.ended)
    (again,) = finish(together, jobs[2:3])  # what a slot held before does not count
    assert again.token_ids == got[2].token_ids


@pytest.mark.slow
def test_of_draws_the_likeliest_stays_and_the_seeds_differ(checkpoint: Checkpoint):
    def drawn(runner: Runner) -> Finished:
        (first,) = finish(runner, windows(1, PROMPT[:3]))
        runner.restart(first.job, 1.0)
        return wait(runner, 1)[0]

    one, three, five, beams = (
        load_beams(checkpoint, beam_size=size, best_of=count, batch_size=2).runner()
        for size, count in ((1, 1), (1, 3), (1, 5), (3, 5))
    )
    first, of_three, of_five, of_beams = map(drawn, (one, three, five, beams))

    def score(finished: Finished) -> float:
        return finished.sum_logprob / max(len(finished.token_ids), 1)

    assert score(first) <= score(of_three) <= score(of_five)
    assert len({first.token_ids, of_three.token_ids, of_five.token_ids}) > 1
    assert of_beams.token_ids == of_five.token_ids  # a draw depends on its number alone
    assert {each.temperature for each in (first, of_three, of_five, of_beams)} == {1.0}


def test_ended_texts_leave_the_beam_while_better_ones_are_missing():
    """Two beams, A and B; candidates by score: A-2, B-end, A-3, A-end."""
    logprobs = np.full((2, 8), -50.0, np.float32)
    logprobs[0, [2, 3, 7]] = [-0.1, -0.5, -0.6]
    logprobs[1, 7] = -0.2
    beams = Beams(
        tokens=jnp.array([[1, 4, 0, 0], [1, 5, 0, 0]], jnp.int32),
        position=jnp.array([1, 1], jnp.int32),
        sum_logprob=jnp.zeros(2, jnp.float32),
        is_first=jnp.zeros(2, bool),
        is_searching=jnp.ones(2, bool),
    )
    choose = jax.jit(choose_beams, static_argnums=(3, 4))
    choice = choose(jnp.asarray(logprobs), beams, no_texts(1, 2, 4), 2, 7)
    assert (choice.token.tolist(), choice.source.tolist()) == ([2, 3], [0, 0])
    assert choice.ended.count.tolist() == [1]
    assert choice.ended.tokens[0, 0, :3].tolist() == [1, 5, 7]


def test_the_length_is_that_of_the_rule():
    short, long = Text((1, 2), -1.0, True), Text((1, 2, 3, 4, 5), -2.2, True)
    assert likeliest([short, long], None) is long
    assert likeliest([short, long], 0.0) is short
    assert likeliest([short, long], 3.0) is long


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"patience": 2.0}, "searches nothing"),
        ({"best_of": 2, "temperatures": (0.0,)}, "draws nothing"),
        ({"length_penalty": 1.0}, "no choice"),
        ({"beam_size": 0}, "at least 1"),
        ({"beam_size": 100}, "at most"),
        ({"beam_size": 2, "patience": 0.0}, "above 0"),
    ],
)
def test_options_of_a_search_that_there_is_not_are_refused(config: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        WhisperConfig(**config)
