"""The text engine: paged KV, continuous batching, bursts of decode steps on the device.

What is named here is imported when it is first used: configs must be had without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.engines.llm.async_engine import AsyncEngine
    from headrace.engines.llm.conversation import ChatOptions
    from headrace.engines.llm.engine_config import CacheConfig, EngineConfig, SchedulerConfig
    from headrace.engines.llm.llm import LLM, check_model
    from headrace.engines.llm.prompts import EncodeOptions, TextRequest
    from headrace.engines.llm.request import CompletionOutput, RequestOutput
    from headrace.engines.llm.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "AsyncEngine",
    "CacheConfig",
    "ChatOptions",
    "CompletionOutput",
    "EncodeOptions",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "TextRequest",
    "check_model",
]

_HOMES = {
    "LLM": "llm",
    "AsyncEngine": "async_engine",
    "CacheConfig": "engine_config",
    "ChatOptions": "conversation",
    "CompletionOutput": "request",
    "EncodeOptions": "prompts",
    "EngineConfig": "engine_config",
    "RequestOutput": "request",
    "SamplingParams": "sampling_params",
    "SchedulerConfig": "engine_config",
    "TextRequest": "prompts",
    "check_model": "llm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
