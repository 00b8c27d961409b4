"""What an artifact holds ready for an engine: the arrays of its modules as they are, and its programs."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ModelError
from headrace.engines.program_store import ReadyPrograms


def named_arrays(state: PyTree) -> dict[str, np.ndarray]:
    """Every array of a state under its path, as it lies in the host's memory."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def fill_state(state: PyTree, checkpoint: Checkpoint) -> PyTree:
    """A state of shapes with the arrays of an artifact; where it can, a device takes them as they are mapped.

    Raises:
      ModelError: an array is missing or of another shape or dtype: this machine, or the config, wants
        another layout.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(state)
    wanted = {_name(path): leaf for path, leaf in leaves}
    odd = sorted({*wanted} ^ {*checkpoint.tensor_names()})
    if odd:
        raise _misfit(checkpoint, f"{odd[0]} is {'missing' if odd[0] in wanted else 'not wanted'}")
    arrays = [_read(checkpoint, name, leaf) for name, leaf in wanted.items()]
    return jax.tree_util.tree_unflatten(treedef, arrays)


def ready_programs(checkpoint: Checkpoint) -> ReadyPrograms | None:
    """The programs that came with a model; None where it is no artifact of this machine."""
    record, directory = checkpoint.artifact, checkpoint.programs_directory
    return None if record is None or directory is None else ReadyPrograms(directory, record.made_from)


def _read(checkpoint: Checkpoint, name: str, wanted: Any) -> jax.Array:
    array = checkpoint.tensor(name)
    if array.shape != wanted.shape or array.dtype != wanted.dtype:
        got, takes = (f"{each.dtype}{list(each.shape)}" for each in (array, wanted))
        raise _misfit(checkpoint, f"{name} is {got}, this engine takes {takes}")
    return jax.device_put(array, may_alias=True)


def _misfit(checkpoint: Checkpoint, what: str) -> ModelError:
    record = checkpoint.artifact
    options = {} if record is None else record.engine_config
    told = ", ".join(f"{name} {options.get(name)}" for name in ("dtype", "quantization"))
    return ModelError(
        f"the weights of the artifact {checkpoint.model.spec} are laid out for another machine or other "
        f"options ({told}): take those, or compile the model again here: {what}"
    )


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
