"""The engines of the comparisons, and how each of them is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ModelFormat = Literal[
    "headrace", "huggingface", "ctranslate2", "openvino-fp32", "openvino-int8", "gguf", "gguf-f32"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One line of a table: an engine, and the precision it computes in."""

    name: str
    script: str
    """In peers/."""
    environment: str
    """In peer_environments; headrace is the one that runs the comparison."""
    model_format: ModelFormat
    dtype: str
    default_slots: int = 128
    """Rows, or windows, at a time."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Where a workload wants another number."""


def _llm(name: str, kind: str, model_format: ModelFormat, dtype: str, **settings) -> Engine:
    return Engine(
        name=name,
        script=f"llm_{kind}.py",
        environment=kind,
        model_format=model_format,
        dtype=dtype,
        **settings,
    )


def _whisper(
    name: str, kind: str, environment: str, model_format: ModelFormat, dtype: str, **settings
) -> Engine:
    return Engine(
        name=name,
        script=f"whisper_{kind}.py",
        environment=environment,
        model_format=model_format,
        dtype=dtype,
        **settings,
    )


MANY = {"mixed-512": 256}

ENGINES: dict[str, list[Engine]] = {
    "llm": [
        _llm("headrace bf16", "headrace", "headrace", "bfloat16", slots=MANY),
        _llm("headrace bf16, int8 KV", "headrace", "headrace", "bfloat16-int8kv", slots=MANY),
        _llm("OpenVINO bf16", "openvino", "openvino-fp32", "bfloat16", slots=MANY),
        _llm("vLLM bf16", "vllm", "huggingface", "bfloat16", slots=MANY),
        _llm("headrace f32", "headrace", "headrace", "float32", slots=MANY),
        _llm("headrace f32, int16 weights", "headrace", "headrace", "float32-int16", slots=MANY),
        _llm("headrace int8", "headrace", "headrace", "int8", slots=MANY),
        _llm("OpenVINO int8", "openvino", "openvino-int8", "int8", slots=MANY),
        _llm("OpenVINO f32", "openvino", "openvino-fp32", "float32", slots=MANY),
        _llm("llama.cpp f32", "llama", "gguf-f32", "float32", slots=MANY),
        _llm("llama.cpp as stored", "llama", "gguf", "stored", slots=MANY),
        _llm("transformers bf16", "transformers", "huggingface", "bfloat16"),
    ],
    "whisper": [
        _whisper("headrace bf16", "headrace", "headrace", "headrace", "bfloat16", default_slots=32),
        _whisper(
            "headrace bf16, --encoder-context fit",
            "headrace",
            "headrace",
            "headrace",
            "bfloat16-fit",
            default_slots=32,
        ),
        _whisper("OpenVINO bf16", "openvino", "openvino", "openvino-fp32", "bfloat16"),
        _whisper("faster-whisper f32", "faster", "faster-whisper", "ctranslate2", "float32"),
        _whisper(
            "faster-whisper batched int8", "faster", "faster-whisper", "ctranslate2", "batched-int8_float32"
        ),
        _whisper("headrace f32", "headrace", "headrace", "headrace", "float32", default_slots=32),
    ],
}
