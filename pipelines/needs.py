"""The memory that an engine would take, told from a model's configuration and files alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.engines.checkpoints import open_checkpoint, resolve_model
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.families import read_eagle_config, read_model_config
from headrace.engines.llm.kv_cache import (
    choose_num_pages,
    count_draft_page_bytes,
    count_page_bytes,
    free_memory_bytes,
)
from headrace.engines.llm.partition import largest_part
from headrace.engines.mesh import count_replicas
from headrace.engines.precision import resolve_dtype
from headrace.pipelines.config import GenerateConfig
from headrace.pipelines.generate import engine_config
from headrace.pipelines.prepared_run import PreparedRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What one worker process would hold."""

    weights_bytes: float
    """Weights in the precision of the run."""
    kv_bytes: float | None
    """KV pages; None for a model without any."""
    num_pages: int
    """How many pages those are."""
    page_size: int
    """Tokens of a page."""
    free_bytes: int
    """Memory that is free on this machine's device now."""
    num_devices: int = 1
    """Devices that the model is spread over, those of all replicas."""
    device_weights_bytes: float = 0.0
    """Weights of one of several devices, about."""
    device_kv_bytes: float = 0.0
    """KV pages of one of several devices, of the one with the most layers."""


def engine_needs(run: PreparedRun) -> Needs:
    """The needs of a planned run's engine.

    Raises:
      ConfigError: not even one row fits the memory.
    """
    config = run.work.config
    model = resolve_model(config.model, revision=config.revision)
    checkpoint = open_checkpoint(model)
    dtype = resolve_dtype(config.dtype)
    weights = num_weights(checkpoint.config) * dtype.itemsize
    kv_bytes, num_pages, page_size = None, 0, 0
    spread: dict[str, Any] = {}
    if isinstance(config, GenerateConfig):
        config_json = {**checkpoint.config, **config.overrides}
        shape, engine = read_model_config(config_json), engine_config(config)
        page_size = engine.cache.page_size
        longest = min(engine.scheduler.max_model_len or shape.max_position, shape.max_position)
        draft = _draft_needs(engine)
        weights += draft.weights_bytes
        num_pages = choose_num_pages(shape, engine, longest, dtype, draft.page_bytes)
        a_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        kv_bytes = float((a_token * page_size + draft.page_bytes) * num_pages)
        part = largest_part(shape, engine.parallel)
        spread = {
            "num_devices": engine.parallel.num_devices * count_replicas(engine.parallel),
            "device_weights_bytes": weights / engine.parallel.num_devices,
            "device_kv_bytes": float(count_page_bytes(part, engine.cache, dtype) * num_pages),
        }
    return Needs(
        weights_bytes=weights,
        kv_bytes=kv_bytes,
        num_pages=num_pages,
        page_size=page_size,
        free_bytes=free_memory_bytes(),
        **spread,
    )


class _DraftNeeds(NamedTuple):
    """What a draft model or an EAGLE head adds."""

    weights_bytes: float
    page_bytes: int


def _draft_needs(engine: EngineConfig) -> _DraftNeeds:
    speculative = engine.speculative
    if not speculative.use_model():
        return _DraftNeeds(0.0, 0)
    speculative.require_model()
    checkpoint, dtype = open_checkpoint(speculative.speculative_model or ""), resolve_dtype(engine.dtype)
    is_eagle = speculative.use_eagle()
    shape = read_eagle_config(checkpoint) if is_eagle else read_model_config(checkpoint.config)
    weights = num_weights(checkpoint.config)
    if is_eagle:  # the tables are the model's, and there is the product that joins two states
        tables = shape.vocab_size * shape.hidden_size * (1 if shape.tie_embeddings else 2)
        weights += 2 * shape.hidden_size**2 - tables
    page_bytes = count_draft_page_bytes(shape, engine.cache, dtype, keeps_hidden=is_eagle)
    return _DraftNeeds(weights * dtype.itemsize, page_bytes)


def num_weights(config: Mapping[str, Any]) -> float:
    """Weights of a model of config.json's form, to a per cent or so: matrices only."""
    if config.get("model_type") == "whisper":
        return _whisper_weights(config)
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or width // heads
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * width * head * (heads + kv_heads)
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    mlp = 3 * width * (config.get("moe_intermediate_size") or config["intermediate_size"]) * experts
    tables = config["vocab_size"] * width * (1 if config.get("tie_word_embeddings") else 2)
    return float(layers * (attention + mlp) + tables)


def _whisper_weights(config: Mapping[str, Any]) -> float:
    width = config["d_model"]
    encoder = config["encoder_layers"] * (4 * width**2 + 2 * width * config["encoder_ffn_dim"])
    decoder = config["decoder_layers"] * (8 * width**2 + 2 * width * config["decoder_ffn_dim"])
    convolutions = 3 * width * (config["num_mel_bins"] + width)
    positions = config.get("max_source_positions", 1500) + config.get("max_target_positions", 448)
    return float(math.fsum([encoder, decoder, convolutions, width * (config["vocab_size"] + positions)]))
