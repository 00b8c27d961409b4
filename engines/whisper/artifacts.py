"""A Whisper engine out to an artifact, and its parts back from one."""

from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.checkpoints.artifact import new_artifact, write_files, write_record
from headrace.engines.checkpoints.artifact_record import ArtifactRecord
from headrace.engines.errors import ModelError
from headrace.engines.prepared import fill_state
from headrace.engines.whisper.config import ModelDims, WhisperConfig
from headrace.engines.whisper.model import WhisperModel
from headrace.engines.whisper.runner import Runner
from headrace.engines.whisper.weights import Outline


def write_artifact(directory: Path, runner: Runner, config: WhisperConfig, checkpoint: Checkpoint) -> None:
    """Writes an engine's weights, programs, config and tokenizer into a new directory.

    Raises:
      ConfigError: there is something at this place.
      EngineError: a program cannot be written.
    """
    tokenizer = checkpoint.fast_tokenizer()
    with new_artifact(directory) as made:
        configs = {
            "config.json": checkpoint.config,
            "generation_config.json": checkpoint.generation_config,
            "preprocessor_config.json": checkpoint.preprocessor_config,
        }
        write_files(made, configs, tokenizer.wrapped, None)
        record = ArtifactRecord(
            kind="whisper",
            model=checkpoint.model.spec,
            model_fingerprint=checkpoint.model.fingerprint,
            engine_config=config.to_dict(),
            tensor_shapes=_tensor_shapes(checkpoint),
            made_from=runner.export(made),
            decodes_only=tokenizer.decodes_only,
        )
        write_record(made, record)


def stored_config(checkpoint: Checkpoint) -> WhisperConfig | None:
    """The config of the engine that an artifact was made of; None for other models.

    Raises:
      ModelError: it is another engine's.
    """
    record = checkpoint.artifact
    if record is None:
        return None
    if record.kind != "whisper":
        raise ModelError(f"{checkpoint.model.spec} is an artifact for texts: it takes no audio")
    return WhisperConfig.from_dict(record.engine_config)


def _tensor_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a checkpoint, or of the one that an artifact was made of."""
    if checkpoint.artifact is not None:
        return dict(checkpoint.artifact.tensor_shapes or {})
    return {name: checkpoint.tensor(name).shape for name in checkpoint.tensor_names()}


def read_model(
    checkpoint: Checkpoint, dims: ModelDims, dtype: jnp.dtype, config: WhisperConfig
) -> WhisperModel:
    """The model with an artifact's weights as they are.

    Raises:
      ModelError: they are laid out for another machine or config.
    """

    def outline() -> WhisperModel:
        weights = Outline(checkpoint, dims, dtype, config.quantization)
        return WhisperModel(weights, dims, has_beams=config.beam_size > 1)

    graph, state = nnx.split(nnx.eval_shape(outline))
    return nnx.merge(graph, fill_state(state, checkpoint))
