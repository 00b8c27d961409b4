"""The checks of accelerator_check.py, one a process: prints a line of JSON with state, reason and figures."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headrace.engines.errors import ConfigError
from headrace.engines.llm import LLM, EngineConfig, SamplingParams
from headrace.engines.llm.attend import attend_even, attend_single
from headrace.engines.llm.attention import AttentionRule, Projected, choose_backend
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.families import read_model_config
from headrace.engines.llm.kv_cache import make_pages
from headrace.engines.llm.measured import measure_phases

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "smollm2_greedy.json"
TEXT_MODEL, SPEECH_MODEL = "demo:smollm2-135m", "demo:whisper-tiny.en"
LENGTHS = (5, 100, 257, 600)
PAGE_SIZE, TABLE_TOKENS = 32, 768
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
TOLERANCE = 3e-2
"""Of bfloat16 numbers of size 1 (8 bits), also in the weights of the mean."""
NEAR_TIE = 1e-3
"""Logits that are this near to each other may change places: other devices add in another order."""


class SkippedError(Exception):
    """A check that does not go with this device."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    is_small = jax.default_backend() == "cpu" and not args.full
    kind, _, backend = args.name.rpartition(" ")
    checks = {
        "device": device,
        "transcripts": transcripts,
        "Whisper speed": speech_speed,
        "headrace bench": partial(run_bench, is_small),
        "headrace generate": run_generate,
        "texts": print_texts,
    }
    kinds = {"attention": attention, "tokens": tokens, "text speed": partial(text_speed, is_small)}
    check = checks.get(args.name) or partial(kinds[kind], backend)
    try:
        result: Mapping[str, Any] = {"state": "passed", **(check() or {})}
    except SkippedError as skipped:
        result = {"state": "skipped", "reason": str(skipped)}
    print(json.dumps(result))


def device() -> Mapping[str, Any]:
    """What there is."""
    first = jax.devices()[0]
    stats = first.memory_stats() or {}
    return {
        "kind": first.device_kind,
        "platform": jax.default_backend(),
        "devices": jax.device_count(),
        "memory": f"{stats.get('bytes_limit', 0) / 2**30:.1f} GiB",
        **{package: version(package) for package in ("jax", "jaxlib", "headrace")},
    }


def attention(backend: str) -> Mapping[str, Any]:
    """Prompts and single tokens over bfloat16 pages against a dense softmax in float64."""
    model = _small_model()
    chosen = _require(backend, model.head_dim)
    dtype = jnp.dtype(jnp.bfloat16)
    num_rows, width = len(LENGTHS), TABLE_TOKENS // PAGE_SIZE
    pages = np.random.default_rng(0).permutation(np.arange(1, num_rows * width + 1))
    table = jnp.asarray(pages.reshape(num_rows, width), jnp.int32)
    cache = make_pages(model, num_rows * width + 1, PAGE_SIZE, dtype, chosen)[0]
    count = max(LENGTHS)
    columns = np.arange(count)[None]
    positions = np.where(columns < np.asarray(LENGTHS)[:, None], columns, -1).astype(np.int32)
    draw = np.random.default_rng(1)
    shape = (num_rows, count + 1, HEADS + 2 * KV_HEADS, HEAD_DIM)
    qkv = jnp.asarray(draw.normal(size=shape), dtype).astype(jnp.float32)
    rule = AttentionRule(scale=HEAD_DIM**-0.5)
    prompts, last = qkv[:, :count], qkv[:, count]

    def project(rows: jax.Array) -> Projected:
        return Projected(rows.reshape(-1, *rows.shape[-2:]), None, None, 0.0, KV_HEADS, dtype)

    several = jax.jit(
        lambda cache: attend_even(chosen, table, jnp.asarray(positions), project(prompts), cache, rule)
    )
    mixed, cache = several(cache)
    ends = jnp.asarray(LENGTHS, jnp.int32)
    single = jax.jit(lambda cache: attend_single(chosen, table, ends, project(last), cache, rule))
    one, _ = single(cache)
    mixed = np.asarray(mixed, np.float32).reshape(num_rows, count, HEADS, HEAD_DIM)
    errors = []
    for row, length in enumerate(LENGTHS):
        expected = _dense(np.concatenate([prompts[row, :length], last[row][None]]))
        errors.append(np.abs(expected[:-1] - mixed[row, :length]).max())
        errors.append(np.abs(expected[-1] - np.asarray(one[row], np.float32)).max())
    prompt_error, single_error = float(max(errors[::2])), float(max(errors[1::2]))
    assert max(errors) < TOLERANCE, (
        f"errors of {prompt_error:.1e} in prompts, {single_error:.1e} in single tokens"
    )
    return {"prompts": f"{prompt_error:.1e} off", "single tokens": f"{single_error:.1e} off"}


def tokens(backend: str) -> Mapping[str, Any]:
    """Greedy tokens in float32 against those of transformers on a CPU, which this CPU's equal."""
    _require_speed(backend)
    jax.config.update("jax_default_matmul_precision", "highest")
    golden = json.loads(GOLDEN.read_text())
    rows = golden["rows"]
    config = EngineConfig.of(dtype="float32", max_num_seqs=32, max_model_len=512, attention_backend=backend)
    with LLM(TEXT_MODEL, config) as llm:
        params = SamplingParams(max_tokens=golden["max_tokens"])
        outputs = llm.generate([row["prompt_token_ids"] for row in rows], params)
    near_ties = 0
    for row, output in zip(rows, outputs, strict=True):
        ours, theirs = list(output.outputs[0].token_ids), row["token_ids"]
        if ours != theirs:
            first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            assert row["gaps"][first] < NEAR_TIE, f"{row['id']} differs at token {first}"
            near_ties += 1
    return {"texts": len(rows), "near ties that differ": near_ties}


def transcripts() -> Mapping[str, Any]:
    """Texts of the demo's recordings in float32, against those that a process on the CPU gives."""
    if jax.default_backend() == "cpu":
        raise SkippedError("it compares a device with the CPU")
    jax.config.update("jax_default_matmul_precision", "highest")
    command = [sys.executable, __file__, "texts"]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    wanted, got = json.loads(done.stdout.splitlines()[-1])["texts"], _texts()
    differing = [name for name, text in wanted.items() if got[name] != text]
    assert not differing, f"other texts for {', '.join(differing)}"
    return {"recordings": len(wanted)}


def print_texts() -> Mapping[str, Any]:
    """The texts on this device."""
    return {"texts": _texts()}


def text_speed(is_small: bool, backend: str) -> Mapping[str, Any]:
    """Prefill and decode of a demo model, and compiling and loading."""
    _require_speed(backend)
    rows, length, new = (8, 32, 8) if is_small else (256, 128, 128)
    config = EngineConfig.of(
        max_num_seqs=rows, max_model_len=512, attention_backend=backend, cache_dir="none"
    )
    started_s = time.monotonic()
    with LLM(TEXT_MODEL, config) as llm:
        loaded_s = time.monotonic()
        llm.precompile()
        compiled_s = time.monotonic()
        phases = measure_phases(llm, num_rows=rows, prompt_tokens=length, max_tokens=new)
    rates = {phase.name: f"{phase.count / phase.seconds:.0f} tokens/s" for phase in phases}
    return {**rates, "load": f"{loaded_s - started_s:.1f} s", "compile": f"{compiled_s - loaded_s:.1f} s"}


def speech_speed() -> Mapping[str, Any]:
    """Encoder and decoder of a demo model over the demo's recordings."""
    from headrace.engines.whisper.measured import measure_phases as measure_speech

    phases = measure_speech(SPEECH_MODEL, _recordings(), dtype="bfloat16", batch_size=None)
    return {phase.name: f"{phase.count / phase.seconds:.1f} {phase.unit}/s" for phase in phases}


def run_bench(is_small: bool) -> Mapping[str, Any]:
    """`headrace bench` as a user calls it: the machine's limits, and the text model beside them."""
    options = (
        ["--rows", "4", "--prompt-tokens", "16", "--max-tokens", "4", "--slots", "4"] if is_small else []
    )
    command = [sys.executable, "-m", "headrace.jobs", "bench", "--model", TEXT_MODEL, "--seconds", "0.1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1:]
    return {"output": done.stdout.splitlines()}


def run_generate() -> Mapping[str, Any]:
    """`headrace generate` through Beam, with the engine in a process of its own."""
    from headrace.jobs.demo_inputs import write_prompts

    with tempfile.TemporaryDirectory() as scratch:
        prompts, out = Path(scratch) / "prompts.jsonl", Path(scratch) / "out"
        write_prompts(prompts)
        command = [sys.executable, "-m", "headrace.jobs", "generate", prompts, "--output", out]
        command += [
            "--model",
            TEXT_MODEL,
            "--max-tokens",
            "16",
            "--max-model-len",
            "256",
            "--max-num-seqs",
            "8",
        ]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr.splitlines()[-1:]
        assert (out / "__run" / "_SUCCESS").exists(), "no _SUCCESS"
    return {}


def _require(backend: str, head_dim: int) -> Any:
    """The backend, where it runs on this device.

    Raises:
      SkippedError: it does not.
    """
    try:
        return choose_backend(EngineConfig.of(attention_backend=backend, page_size=PAGE_SIZE), head_dim)
    except ConfigError as refused:
        raise SkippedError(str(refused)) from refused


def _require_speed(backend: str) -> None:
    _require(backend, HEAD_DIM)
    if backend == "pallas-gpu" and jax.default_backend() == "cpu":
        raise SkippedError("interpret mode on a CPU is too slow for a real model")


def _small_model() -> ModelConfig:
    """SmolLM2's shape with one layer."""
    return read_model_config(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 32,
            "hidden_size": HEADS * HEAD_DIM,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "max_position_embeddings": TABLE_TOKENS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
        }
    )


def _dense(qkv: np.ndarray) -> np.ndarray:
    """Causal attention of one row, float64; `qkv` is [tokens, heads, head size]."""
    rows = qkv.astype(np.float64)
    queries, keys, values = np.split(rows, [HEADS, HEADS + KV_HEADS], axis=1)
    keys, values = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (keys, values))
    scores = np.einsum("qhd,khd->hqk", queries, keys) * HEAD_DIM**-0.5
    scores = np.where(np.tri(len(rows), dtype=bool)[None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)


def _texts() -> dict[str, str]:
    from headrace.engines.whisper import WhisperConfig, WhisperEngine

    with WhisperEngine(SPEECH_MODEL, WhisperConfig(dtype="float32", temperatures=(0.0,))) as engine:
        paths = _recordings()
        results = engine.transcribe(paths)
    return {Path(path).name: result["text"] for path, result in zip(paths, results, strict=True)}


def _recordings() -> list[str]:
    from headrace.jobs.demo_inputs import speech_folder

    return sorted(map(str, speech_folder().rglob("*.wav")))


if __name__ == "__main__":
    main()
