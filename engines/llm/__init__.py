"""The text engine: paged KV, continuous batching, bursts of decode steps on the device.

What is named here is imported when it is first used: configs must be had without waiting for JAX.
"""

from typing import TYPE_CHECKING

from headrace.audio.lazy import lazily

if TYPE_CHECKING:
    from headrace.engines.llm.assembly import check_model
    from headrace.engines.llm.async_engine import AsyncEngine
    from headrace.engines.llm.conversation import ChatOptions
    from headrace.engines.llm.engine_config import CacheConfig, EngineConfig, SchedulerConfig
    from headrace.engines.llm.llm import LLM
    from headrace.engines.llm.prompts import EncodeOptions, TextRequest
    from headrace.engines.llm.request import CompletionOutput, RequestOutput
    from headrace.engines.llm.sampling_params import SamplingParams
    from headrace.engines.llm.speculative_config import SpeculativeConfig
    from headrace.engines.llm.step_engine import StepEngine

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
    "SpeculativeConfig",
    "StepEngine",
    "TextRequest",
    "check_model",
]

_HOMES = {
    "assembly": ("check_model",),
    "async_engine": ("AsyncEngine",),
    "conversation": ("ChatOptions",),
    "engine_config": ("CacheConfig", "EngineConfig", "SchedulerConfig"),
    "llm": ("LLM",),
    "prompts": ("EncodeOptions", "TextRequest"),
    "request": ("CompletionOutput", "RequestOutput"),
    "sampling_params": ("SamplingParams",),
    "speculative_config": ("SpeculativeConfig",),
    "step_engine": ("StepEngine",),
}
__getattr__ = lazily(__name__, _HOMES)
