"""What both engines share: the driver, errors, checkpoints, sampling and shape buckets."""

from headrace.engines.driver import Driver, Engine
from headrace.engines.errors import (
    ConfigError,
    EngineError,
    ModelError,
    QueueFullError,
    RequestError,
    RowError,
)
from headrace.engines.serialization import Serializable

__all__ = [
    "ConfigError",
    "Driver",
    "Engine",
    "EngineError",
    "ModelError",
    "QueueFullError",
    "RequestError",
    "RowError",
    "Serializable",
]
