"""The sampler against its definition in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines.sampling import SamplingRows, argmax, derive_seed, filter_logits, sample

VOCAB = 50


def make_rows(count: int, **fields) -> SamplingRows:
    """Rows with the same parameters and seeds 0, 1, 2, ..."""
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | fields
    seeds = np.stack([np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)], axis=1)
    return SamplingRows(
        temperature=jnp.full(count, settings["temperature"], jnp.float32),
        top_k=jnp.full(count, settings["top_k"], jnp.int32),
        top_p=jnp.full(count, settings["top_p"], jnp.float32),
        min_p=jnp.full(count, settings["min_p"], jnp.float32),
        seed=jnp.asarray(seeds),
        output_index=jnp.zeros(count, jnp.int32),
    )


def expected_probabilities(
    logits: np.ndarray, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0
) -> np.ndarray:
    """Probabilities by sorting, as the definitions say, in float64."""
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    keep = np.ones(len(logits), bool)
    if top_k > 0:
        keep[order[top_k:]] = False
    weights = np.where(keep, np.exp(scaled - scaled.max()), 0.0)
    probabilities = weights / weights.sum()
    if top_p < 1.0:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        keep[order[before >= top_p]] = False
    keep &= probabilities >= min_p * probabilities.max()
    weights = np.where(keep, weights, 0.0)
    return weights / weights.sum()


CASES = [
    {"temperature": 0.7},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_k": -1},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"top_p": 1e-6},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_filters_keep_what_their_definitions_keep(case):
    logits = np.random.default_rng(0).normal(0, 3, (16, VOCAB)).astype(np.float32)
    kept = np.isfinite(np.asarray(filter_logits(jnp.asarray(logits), make_rows(16, **case))))
    for row in range(16):
        assert (kept[row] == (expected_probabilities(logits[row], **case) > 0)).all()


DRAWN = [{}, {"temperature": 0.7}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}, CASES[-1]]


@pytest.mark.parametrize("case", DRAWN, ids=str)
def test_draws_have_the_frequencies_of_the_filtered_distribution(case):
    logits = np.random.default_rng(1).normal(0, 2, VOCAB).astype(np.float32)
    count = 20_000
    tokens = sample(jnp.asarray(np.tile(logits, (count, 1))), make_rows(count, **case))
    expected = expected_probabilities(logits, **case) * count
    observed = np.bincount(np.asarray(tokens), minlength=VOCAB)
    assert observed[expected == 0].sum() == 0
    common = expected >= 5
    chi_square = ((observed - expected)[common] ** 2 / expected[common]).sum()
    degrees = max(common.sum() - 1, 1)
    # Mean `degrees`, variance 2 x degrees: five standard deviations above.
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


def test_temperature_zero_takes_the_largest_beside_rows_that_draw():
    logits = jnp.asarray(np.random.default_rng(2).normal(0, 1, (4, VOCAB)).astype(np.float32))
    rows = make_rows(4)._replace(temperature=jnp.asarray([0.0, 1.0, 0.0, 1.0], jnp.float32))
    tokens = np.asarray(sample(logits, rows))
    largest = np.asarray(jnp.argmax(logits, axis=-1))
    assert (tokens[[0, 2]] == largest[[0, 2]]).all()


def test_a_draw_depends_on_its_seed_and_output_index_alone():
    logits = jnp.zeros((6, VOCAB), jnp.float32)
    rows = make_rows(6)
    tokens = np.asarray(sample(logits, rows))
    back = SamplingRows(*(array[::-1] for array in rows))
    assert (np.asarray(sample(logits, back))[::-1] == tokens).all()
    later = np.asarray(sample(logits, rows._replace(output_index=jnp.ones(6, jnp.int32))))
    assert (later != tokens).any()


@pytest.mark.parametrize("vocab_size", [64, 640, 1000])
def test_argmax_finds_the_first_of_the_largest(vocab_size):
    logits = np.random.default_rng(4).integers(0, 5, (200, vocab_size)).astype(np.float32)
    logits[0] = -np.inf
    logits[0, -1] = -1e9
    assert (np.asarray(argmax(jnp.asarray(logits))) == logits.argmax(axis=1)).all()


def test_derived_seeds_differ_by_job_row_and_sample_and_repeat():
    seeds = {derive_seed(job, row, n) for job in (0, 1) for row in ("a", "b") for n in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "a") == derive_seed(0, "a")
