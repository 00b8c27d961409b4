"""A model, its tokenizer and its engines, put together from a spec and a config."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from headrace.engines import native
from headrace.engines.checkpoints import Checkpoint, open_checkpoint, open_without_weights
from headrace.engines.errors import ConfigError, ModelError
from headrace.engines.llm.artifacts import read_decoder, stored_num_pages
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.draft import Draft
from headrace.engines.llm.eagle_head import EagleHead
from headrace.engines.llm.engine import LLMEngine
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.families import load_decoder, load_eagle_head, random_decoder, read_model_config
from headrace.engines.llm.kv_cache import choose_num_pages, count_draft_page_bytes
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.partition import ON_DEFAULT_DEVICE, Layout, check_split, stage_layouts
from headrace.engines.llm.pipeline import Stage
from headrace.engines.llm.request_encoder import RequestEncoder
from headrace.engines.llm.runner import Runner
from headrace.engines.llm.sampling_params import MAX_STOP_IDS, SamplingParams
from headrace.engines.llm.tokenizer import PromptTokenizer
from headrace.engines.mesh import choose_meshes, count_replicas
from headrace.engines.partition import PartitionRules
from headrace.engines.precision import resolve_dtype
from headrace.engines.prepared import ready_programs

Overrides = Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacements:
    """What takes the place of parts of a checkpoint."""

    tokenizer: Any = None
    """A directory, a model spec or an object in place of the model's own tokenizer."""
    chat_template: str | Path | None = None
    """Jinja text, or the path of a file with it."""
    hf_overrides: Overrides | None = None
    """Entries that replace those of config.json, or a function from that config to another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembly:
    """Everything that serves one model."""

    checkpoint: Checkpoint
    """The model's files, under the config that is in force."""
    config: EngineConfig
    """How the engines run."""
    model_config: ModelConfig
    """The model's shape."""
    max_model_len: int
    """Longest prompt plus output of a row, in tokens."""
    tokenizer: PromptTokenizer
    """Prompts to tokens and back."""
    encoder: RequestEncoder
    """Requests in text to requests in tokens."""
    engines: list[LLMEngine]
    """Replicas; those on the same devices share the weights."""


def assemble(
    model: str | Checkpoint,
    config: EngineConfig,
    replaced: Replacements,
    num_replicas: int = 1,
    draft: Draft | None = None,
    partition_rules: PartitionRules | None = None,
) -> Assembly:
    """Loads a model, and gives it the memory that it is going to use.

    `draft` takes the place of the draft model that the config names.

    Raises:
      ModelError: the model cannot be found, read or run.
      ConfigError: the configuration does not fit the model or the memory.
    """
    checkpoint = open_model(model, config)
    if replaced.hf_overrides is not None:
        checkpoint = checkpoint.with_config(_override(checkpoint.config, replaced.hf_overrides))
    dtype = resolve_dtype(config.dtype)
    model_config = read_model_config(checkpoint.config)
    max_model_len = _choose_max_model_len(config, model_config.max_position)
    model_config = model_config.for_context(max_model_len)
    _check_token_ids(config.token_ids, model_config.vocab_size)
    with ThreadPoolExecutor(1, "headrace-tokenizer") as pool:  # most of its time it is being imported
        making = pool.submit(PromptTokenizer, checkpoint, config, replaced.tokenizer, replaced.chat_template)
        replicas = load_replicas(checkpoint, model_config, config, partition_rules)
        tokenizer = making.result()
    encoder = RequestEncoder(
        tokenizer, config, vocab_size=model_config.vocab_size, max_prompt_len=max_model_len - 1
    )
    draft = draft or load_draft(config, max_model_len, replicas[0][0].decoder)
    if draft is not None:
        draft.check(model_config, max_model_len)
        draft.check_vocabulary(tokenizer.vocabulary)
    page_bytes = _draft_page_bytes(draft, config.cache.page_size)
    num_pages = choose_num_pages(model_config, config, max_model_len, dtype, page_bytes)
    num_pages = stored_num_pages(checkpoint, config, num_pages)
    engines = [
        LLMEngine(
            Runner(stages, config, pages, max_model_len, dtype, draft, ready_programs(checkpoint)),
            tokenizer,
            config,
            num_pages=pages,
            max_model_len=max_model_len,
        )
        for pages in _share_pages(num_pages, config, num_replicas)
        for stages in replicas
    ]
    return Assembly(
        checkpoint=checkpoint,
        config=config,
        model_config=model_config,
        max_model_len=max_model_len,
        tokenizer=tokenizer,
        encoder=encoder,
        engines=engines,
    )


def load_draft(config: EngineConfig, max_model_len: int, target: Decoder) -> Draft | None:
    """The draft model or head that a config names, with the engine's precision; None where none is wanted.

    Raises:
      ModelError: it cannot be found, read or run.
      ConfigError: one is wanted and not named, or a head does not fit the target.
    """
    if not config.speculative.use_model():
        return None
    config.speculative.require_model()
    checkpoint = open_checkpoint(config.speculative.speculative_model or "")
    if config.speculative.use_eagle():
        head = load_eagle_head(checkpoint, target, choose_precision(config))
        return Draft(decoder=head, config=config, is_borrowed=False)
    model = read_model_config(checkpoint.config)
    decoder = load_weights(checkpoint, model.for_context(min(max_model_len, model.max_position)), config)
    return Draft(decoder=decoder, config=config, is_borrowed=False, vocabulary=_vocabulary(checkpoint))


def _vocabulary(checkpoint: Checkpoint) -> dict[str, int]:
    """The tokens of a draft model; none where it comes without a tokenizer, which it does not need."""
    try:
        return checkpoint.fast_tokenizer().backend.get_vocab(with_added_tokens=False)
    except ModelError:
        return {}


def _draft_page_bytes(draft: Draft | None, page_size: int) -> int:
    if draft is None:
        return 0
    cache, dtype = draft.config.cache.replace(page_size=page_size), resolve_dtype(draft.config.dtype)
    return count_draft_page_bytes(
        draft.decoder.config, cache, dtype, keeps_hidden=isinstance(draft.decoder, EagleHead)
    )


def load_replicas(
    checkpoint: Checkpoint, model: ModelConfig, config: EngineConfig, rules: PartitionRules | None = None
) -> list[list[Stage]]:
    """The pipeline stages of each replica that has devices of its own, with their weights.

    Raises:
      ModelError: as `load_weights`.
      ConfigError: there are not so many devices, or the model cannot be split so.
    """
    replicas = [
        stage_layouts(model, config.parallel, meshes, rules) for meshes in choose_meshes(config.parallel)
    ]
    return [
        [Stage(load_weights(checkpoint, model, config, layout), layout) for layout in layouts]
        for layouts in replicas
    ]


def load_weights(
    checkpoint: Checkpoint, model: ModelConfig, config: EngineConfig, layout: Layout = ON_DEFAULT_DEVICE
) -> Decoder:
    """The decoder with the weights in the form that this machine multiplies fastest.

    Raises:
      ModelError: a weight is missing, has another shape, or is no part of the model.
    """
    precision = choose_precision(config)
    if config.use_random_weights:
        return random_decoder(model, precision, layout=layout)
    if checkpoint.artifact is not None:
        return read_decoder(checkpoint, model, precision, config.parallel)
    return load_decoder(checkpoint, model, precision, layout=layout)


def choose_precision(config: EngineConfig) -> Precision:
    """The form of the weights that this machine multiplies fastest.

    Raises:
      ConfigError: int16 weights are wanted where no kernel multiplies them.
    """
    dtype, is_int16 = resolve_dtype(config.dtype), config.quantization == "int16"
    is_native = config.attention_backend != "xla" and native.is_available(native.LINEAR)
    is_native = is_native and config.parallel.num_devices == 1
    if is_int16 and not is_native:
        raise ConfigError(
            "int16 weights are for the native kernels, on one CPU with AVX2: leave out quantization, or what "
            "keeps the kernels out (attention_backend xla, parallel sizes, a build without a compiler)"
        )
    is_packed = is_native and (is_int16 or dtype == jnp.bfloat16)
    rounds = is_packed and not native.multiplies_bfloat16(native.BEST_LEVEL)
    # What the kernels would make of bfloat16 in each product is made once there, of the numbers as they are.
    quantization = config.quantization or ("int16" if rounds else None)
    return Precision(dtype, quantization, is_packed=is_packed)


def open_model(model: str | Checkpoint, config: EngineConfig | None) -> Checkpoint:
    """The checkpoint, which may lack its weights where none are read."""
    if isinstance(model, Checkpoint):
        return model
    if config is not None and config.use_random_weights and Path(model).is_dir():
        return open_without_weights(Path(model))
    return open_checkpoint(model)


def check_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    params: SamplingParams | None = None,
    *,
    chat: bool = False,
    tokenizer: Any = None,
    chat_template: str | Path | None = None,
) -> None:
    """Finds out, without reading weights, whether an engine could be made, and serve such requests.

    Raises:
      ModelError: the checkpoint's architecture is not supported.
      ConfigError: the config or the params do not fit the model, or it has no template and `chat` wants one.
    """
    model = read_model_config(checkpoint.config)
    choose_precision(config)
    check_split(model, config.parallel.tensor_parallel_size)
    config.parallel.stage_layers(model.num_layers)
    _choose_max_model_len(config, model.max_position)
    _check_token_ids((*config.token_ids, *(params.stop_token_ids if params else ())), model.vocab_size)
    if not chat and tokenizer is None and not (params and params.stop_token_ids):
        return  # a tokenizer takes a while to load
    encoder = PromptTokenizer(checkpoint, config, tokenizer, chat_template)
    if chat and not encoder.has_chat_template:
        raise ConfigError(f"{checkpoint.model.spec} has no chat template: send plain prompts")
    if params and len({*encoder.eos_token_ids, *params.stop_token_ids}) > MAX_STOP_IDS:
        raise ConfigError(f"there are more than {MAX_STOP_IDS} stop token ids, the model's own included")


def _check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise ConfigError(f"token id {largest} is none of the model's, which end at {vocab_size - 1}")


def _share_pages(num_pages: int, config: EngineConfig, num_replicas: int) -> list[int]:
    """KV pages of the engines on one set of devices: as many as the config says, or a share of the memory's.

    The devices of a CPU have one memory.
    """
    if num_replicas < 1:
        raise ConfigError(f"num_replicas is {num_replicas}, wanted at least 1")
    num_sharing = num_replicas * (count_replicas(config.parallel) if jax.default_backend() == "cpu" else 1)
    is_given = config.cache.num_pages is not None
    return [num_pages if is_given else max(2, num_pages // num_sharing)] * num_replicas


def _override(config: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    return {**config, **overrides} if isinstance(overrides, Mapping) else overrides(dict(config))


def _choose_max_model_len(config: EngineConfig, max_position: int) -> int:
    wanted = config.scheduler.max_model_len
    if wanted is None:
        return max_position
    if wanted > max_position:
        raise ConfigError(f"max_model_len is {wanted}, the model was made for {max_position}: lower it")
    return wanted
