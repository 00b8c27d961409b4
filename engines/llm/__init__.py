"""The text engine: paged KV, continuous batching, bursts of decode steps on the device."""

from headrace.engines.llm.conversation import ChatOptions
from headrace.engines.llm.engine_config import CacheConfig, EngineConfig, SchedulerConfig
from headrace.engines.llm.llm import LLM, check_model
from headrace.engines.llm.prompts import EncodeOptions, TextRequest
from headrace.engines.llm.request import CompletionOutput, RequestOutput
from headrace.engines.llm.sampling_params import SamplingParams

__all__ = [
    "LLM",
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
