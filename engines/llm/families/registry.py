"""The model families that headrace runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.engines.errors import ModelError
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.families import weight_names
from headrace.engines.llm.families.fields import Fields
from headrace.engines.llm.families.gemma import read_gemma2, read_gemma3
from headrace.engines.llm.families.gpt2 import read_gpt2
from headrace.engines.llm.families.llama import (
    read_llama,
    read_mistral,
    read_phi3,
    read_qwen2,
    read_qwen3,
    read_smollm3,
)
from headrace.engines.llm.families.mixtures import read_mixtral, read_qwen3_moe
from headrace.engines.llm.families.weight_names import WeightNames


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models whose configurations and weights are read alike."""

    title: str
    """Names under which people know them."""
    read: Callable[[Fields], ModelConfig]
    """Reads the configuration."""
    names: WeightNames
    """Where the weights lie."""


FAMILIES = {
    "llama": Family(title="Llama 2 and 3, SmolLM2", read=read_llama, names=weight_names.LLAMA),
    "mistral": Family(title="Mistral", read=read_mistral, names=weight_names.LLAMA),
    "mixtral": Family(title="Mixtral", read=read_mixtral, names=weight_names.MIXTRAL),
    "qwen2": Family(title="Qwen2 and 2.5", read=read_qwen2, names=weight_names.LLAMA),
    "qwen3": Family(title="Qwen3", read=read_qwen3, names=weight_names.LLAMA),
    "qwen3_moe": Family(title="Qwen3-MoE", read=read_qwen3_moe, names=weight_names.QWEN3_MOE),
    "gemma2": Family(title="Gemma 2", read=read_gemma2, names=weight_names.GEMMA),
    "gemma3_text": Family(title="Gemma 3 (text)", read=read_gemma3, names=weight_names.GEMMA),
    "phi3": Family(title="Phi-3, Phi-4-mini", read=read_phi3, names=weight_names.PHI3),
    "smollm3": Family(title="SmolLM3", read=read_smollm3, names=weight_names.LLAMA),
    "gpt2": Family(title="GPT-2", read=read_gpt2, names=weight_names.GPT2),
}
"""By the model_type of a configuration."""


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a `config.json`.

    Raises:
      ModelError: its architecture is none of FAMILIES.
    """
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise ModelError(f"architecture {model_type!r} is not supported: known are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def read_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """The decoder's configuration from a `config.json` in the Hugging Face form.

    Raises:
      ModelError: an architecture, or a field that is set, that is not understood; it is named.
    """
    family = find_family(config)
    _refuse_quantized(config)
    fields = Fields(config)
    model = family.read(fields)
    fields.refuse_unread()
    return model


def _refuse_quantized(config: Mapping[str, Any]) -> None:
    quantization = config.get("quantization_config") or config.get("compression_config")
    if quantization:
        method = quantization.get("quant_method", quantization.get("format", "unknown"))
        raise ModelError(
            f"the checkpoint's weights are quantized by {method}, which headrace does not read: take the "
            "unquantized checkpoint, with --quantization int8 where memory is short"
        )
