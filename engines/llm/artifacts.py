"""A text engine out to an artifact, and its parts back from one."""

from dataclasses import replace
from pathlib import Path

from flax import nnx

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.checkpoints.artifact import new_artifact, write_files, write_record
from headrace.engines.checkpoints.artifact_record import ArtifactRecord
from headrace.engines.compilation_config import AUTO
from headrace.engines.errors import ConfigError, ModelError
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.engine import LLMEngine
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.tokenizer import PromptTokenizer
from headrace.engines.mesh import ParallelConfig
from headrace.engines.prepared import fill_state


def write_artifact(
    directory: Path,
    engine: LLMEngine,
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: PromptTokenizer,
) -> None:
    """Writes an engine's weights, foreseen programs, config and tokenizer into a new directory.

    Raises:
      ConfigError: there is something at this place, or the engine is spread over devices.
      EngineError: a program cannot be written.
    """
    _check_devices(config.parallel)
    with new_artifact(directory) as made:
        configs = {"config.json": checkpoint.config, "generation_config.json": checkpoint.generation_config}
        write_files(made, configs, tokenizer.processor, tokenizer.chat_template)
        made_from = engine.export(made)
        stored = replace(
            config,
            compilation=config.compilation.replace(cache_dir=AUTO),  # a place, which may not be there
            use_random_weights=False,
        )
        record = ArtifactRecord(
            kind="text",
            model=checkpoint.model.spec,
            model_fingerprint=checkpoint.model.fingerprint,
            engine_config=stored.to_dict(),
            num_pages=engine.num_pages,
            made_from=made_from,
        )
        write_record(made, record)


def stored_config(checkpoint: Checkpoint) -> EngineConfig | None:
    """The config of the engine that an artifact was made of; None for other models.

    Raises:
      ModelError: it is another engine's.
    """
    record = checkpoint.artifact
    if record is None:
        return None
    if record.kind != "text":
        raise ModelError(
            f"{checkpoint.model.spec} is an artifact of a {record.kind} model: it takes no prompts"
        )
    return EngineConfig.from_dict(record.engine_config)


def stored_num_pages(checkpoint: Checkpoint, config: EngineConfig, num_pages: int) -> int:
    """`num_pages`, or the fewer that an artifact's programs take where nothing else is asked for."""
    record = checkpoint.artifact
    if record is None or record.num_pages is None or config.cache.num_pages is not None:
        return num_pages
    stored = EngineConfig.from_dict(record.engine_config)
    is_alike = (stored.cache, stored.scheduler) == (config.cache, config.scheduler)
    return min(num_pages, record.num_pages) if is_alike else num_pages


def read_decoder(
    checkpoint: Checkpoint, model: ModelConfig, precision: Precision, parallel: ParallelConfig
) -> Decoder:
    """The decoder with an artifact's weights as they are.

    Raises:
      ModelError: they are laid out for another machine or config.
      ConfigError: the engine is to be spread over devices.
    """
    _check_devices(parallel)
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(model, precision)))
    return nnx.merge(graph, fill_state(state, checkpoint))


def _check_devices(parallel: ParallelConfig) -> None:
    if not parallel.is_default:
        raise ConfigError(
            "an artifact is of an engine on the default device alone: leave out parallel sizes and devices, "
            "or take the model itself"
        )
