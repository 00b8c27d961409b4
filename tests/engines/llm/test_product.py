"""Every way to schedule the same rows gives the same tokens, where the engine is deterministic."""

import itertools
import random

import pytest

from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.driving import drive, encode, make_engine

NUM_ROWS = 14
LENGTHS = (1, 15, 16, 17, 33, 64, 65, 130, 200)
# Whole prompts fit into a dispatch, so that chunks or none have one shape.
SHAPE = {"deterministic": True, "max_num_batched_tokens": 256}


def make_rows() -> list[tuple[list[int], SamplingParams]]:
    """Prompts around the borders of pages, some with one beginning; greedy and seeded rows in turn."""
    rng = random.Random(0)
    beginning = [rng.randrange(32, 288) for _ in range(40)]
    rows = []
    for index in range(NUM_ROWS):
        prompt = [rng.randrange(32, 288) for _ in range(rng.choice(LENGTHS))]
        prompt = beginning + prompt[:180] if index % 3 == 0 else prompt
        sampled = {"temperature": 1.0, "top_p": 0.9, "seed": index} if index % 2 else {}
        rows.append((prompt, SamplingParams(max_tokens=24, ignore_eos=True, **sampled)))
    return rows


ROWS = make_rows()


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(tiny_model, native_model, request):
    """An engine, and what it makes of the rows one by one; in bfloat16 with the native kernels."""
    model = tiny_model if request.param == "float32" else native_model
    with LLM(str(model), tiny_config(dtype=request.param, decode_burst=32, **SHAPE)) as llm:
        config = tiny_config(
            dtype=request.param, enable_prefix_caching=False, async_scheduling=False, **SHAPE
        )
        alone = [run(llm, config, [index])[index] for index in range(NUM_ROWS)]
        yield llm, request.param, alone


def run(llm, config, order) -> dict[int, tuple[int, ...]]:
    made = make_engine(llm, config)
    outputs = drive(made, [encode(llm, str(index), *ROWS[index]) for index in order])
    assert made._scheduler.num_preemptions > 0 or config.cache.num_pages > 100 or len(order) == 1
    return {int(name): output.outputs[0].token_ids for name, output in outputs.items()}


def combinations():
    sides = [[True, False], [200, 20], [1, 8, 32], [None, 24], [False, True], [True, False]]
    return list(itertools.product(*sides))


@pytest.mark.slow
@pytest.mark.parametrize(("caches", "num_pages", "burst", "chunk", "is_shuffled", "is_async"), combinations())
def test_tokens_do_not_depend_on_how_rows_are_scheduled(
    engine, caches, num_pages, burst, chunk, is_shuffled, is_async
):
    check(engine, caches, num_pages, burst, chunk, is_shuffled, is_async)


def test_the_farthest_corners_of_the_product_give_the_same_tokens(engine):
    check(engine, True, 20, 8, 24, True, True)
    check(engine, False, 200, 32, None, False, False)


def check(engine, caches, num_pages, burst, chunk, is_shuffled, is_async) -> None:
    llm, dtype, alone = engine
    config = tiny_config(
        dtype=dtype,
        enable_prefix_caching=caches,
        num_pages=num_pages,
        decode_burst=burst,
        chunked_prefill_enabled=chunk is not None,
        prefill_chunk_size=chunk,
        async_scheduling=is_async,
        **SHAPE,
    )
    order = list(range(NUM_ROWS))
    if is_shuffled:
        random.Random(1).shuffle(order)
    found = run(llm, config, order)
    assert [found[index] for index in range(NUM_ROWS)] == alone
