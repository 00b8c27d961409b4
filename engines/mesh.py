"""Which devices an engine runs on: replicas, pipeline stages and tensor shards, from one config."""

import re
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from headrace.engines.errors import ConfigError
from headrace.engines.program_store import Device
from headrace.engines.serialization import Serializable

TENSOR = "tensor"
"""The axis of a mesh over which heads, MLPs, experts and the vocabulary are split."""

Meshes = tuple[Mesh, ...]
"""The devices of one replica: a mesh for each of its pipeline stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig(Serializable):
    """How a text model is spread over the devices of one host."""

    tensor_parallel_size: int = 1
    """Devices that the heads, MLPs, experts and the vocabulary of each layer are split over."""
    pipeline_parallel_size: int = 1
    """Stages that the layers are cut into, each on devices of its own."""
    pipeline_layers: tuple[int, ...] = ()
    """Layers of each stage (default: as even as can be)."""
    data_parallel_size: int | None = None
    """Replicas, each on devices of its own (default: as many as the named devices have room for, else 1)."""
    devices: str | None = None
    """Numbers of the devices, such as 0-3,6, or all (default: the first ones, as many as are needed)."""

    def __post_init__(self) -> None:
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        for name in sizes:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, wanted at least 1")
        stages = self.pipeline_parallel_size
        if self.pipeline_layers and (len(self.pipeline_layers) != stages or min(self.pipeline_layers) < 1):
            raise ConfigError(
                f"pipeline_layers is {self.pipeline_layers}: give {stages} numbers, each at least 1"
            )
        if self.devices is not None:
            _read_numbers(self.devices)

    @property
    def num_devices(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def is_default(self) -> bool:
        """Whether everything runs on JAX's default device."""
        return self.num_devices == 1 and self.data_parallel_size in (None, 1) and self.devices is None

    def stage_layers(self, num_layers: int) -> tuple[int, ...]:
        """Layers of each pipeline stage; where they are not even, the last stages have more.

        e.g. 7 layers in 3 stages -> (2, 2, 3)

        Raises:
          ConfigError: `pipeline_layers` are not so many in all, or a stage would have none.
        """
        stages = self.pipeline_parallel_size
        if self.pipeline_layers:
            if sum(self.pipeline_layers) != num_layers:
                raise ConfigError(
                    f"pipeline_layers is {self.pipeline_layers}, {sum(self.pipeline_layers)} in all, "
                    f"the model has {num_layers} layers"
                )
            return self.pipeline_layers
        if stages > num_layers:
            raise ConfigError(
                f"pipeline_parallel_size is {stages}, the model has {num_layers} layers: give at most so many"
            )
        return tuple(
            num_layers // stages + (stage >= stages - num_layers % stages) for stage in range(stages)
        )


def choose_meshes(config: ParallelConfig) -> list[Meshes | None]:
    """The meshes of every replica; None for a single one on JAX's default device.

    Replica after replica takes the devices in their order, and of those stage after stage.

    Raises:
      ConfigError: there are not so many devices, or those that are named do not divide into replicas.
    """
    if config.is_default:
        return [None]
    devices = chosen_devices(config)
    shape = (-1, config.pipeline_parallel_size, config.tensor_parallel_size)
    return [
        tuple(Mesh(stage, (TENSOR,)) for stage in replica) for replica in np.array(devices).reshape(shape)
    ]


def chosen_devices(config: ParallelConfig) -> list[Device]:
    """The devices of all replicas.

    Raises:
      ConfigError: as `choose_meshes`.
    """
    there = jax.devices()
    each, replicas = config.num_devices, config.data_parallel_size
    if config.devices is None:
        wanted = range(each * (replicas or 1))
    else:
        wanted = _read_numbers(config.devices) or range(len(there))
        if replicas is None and len(wanted) % each:
            raise ConfigError(
                f"{len(wanted)} devices do not divide into replicas of {each}: name a multiple of {each}"
            )
        if replicas is not None and len(wanted) != each * replicas:
            raise ConfigError(
                f"{replicas} replicas of {each} devices are {each * replicas}, devices names {len(wanted)}: "
                "leave data_parallel_size out to have as many as fit"
            )
    if max(wanted) >= len(there):
        raise ConfigError(
            f"device {max(wanted)} is wanted, JAX sees {len(there)}: lower tensor_parallel_size, "
            "pipeline_parallel_size or data_parallel_size, or name other devices"
        )
    return [there[number] for number in wanted]


def count_replicas(config: ParallelConfig) -> int:
    """Replicas that have devices of their own."""
    return 1 if config.is_default else len(chosen_devices(config)) // config.num_devices


def _read_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list such as 0-3,6; none where it is `all`.

    Raises:
      ConfigError: it is no such list, or names a device twice.
    """
    if text == "all":
        return ()
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if found is None:
            raise ConfigError(f"devices is {text!r}: give all, or numbers such as 0-3,6")
        first = int(found[1])
        numbers += range(first, int(found[2] or first) + 1)
    if not numbers or len(set(numbers)) != len(numbers):
        raise ConfigError(f"devices is {text!r}: name each device once")
    return tuple(numbers)
