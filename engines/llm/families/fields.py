"""A model's `config.json`, read field by field: what is set and never read is refused by name."""

from collections.abc import Mapping
from typing import Any

from headrace.engines.errors import ModelError
from headrace.engines.llm.config import Activation

# fmt: off
HARMLESS_FIELDS = frozenset((
    "architectures", "attention_dropout", "attn_implementation", "attn_pdrop", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "dtype", "embd_pdrop", "eos_token_id", "id2label",
    "initializer_range", "is_llama_config", "keys_to_ignore_at_inference", "label2id", "model_type", "n_ctx",
    "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp",
    "problem_type", "resid_pdrop", "return_dict", "router_aux_loss_coef", "router_jitter_noise",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params", "torch_dtype", "transformers.js_config",
    "transformers_version", "unk_token_id", "use_cache",
))
# fmt: on
"""Fields that change nothing in inference, or that are read elsewhere (the token ids)."""

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


class Fields:
    """A configuration that remembers which of its fields were read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """A field's value; the default where it is missing or null."""
        value = self.given(name, None)
        return default if value is None else value

    def given(self, name: str, missing: Any) -> Any:
        """A field's value, null as None; `missing` only where the field is not there at all."""
        self._read.add(name)
        return self._config.get(name, missing)

    def need(self, name: str) -> Any:
        """A field's value.

        Raises:
          ModelError: it is missing.
        """
        value = self.get(name)
        if value is None:
            raise ModelError(f"the model's configuration has no {name}")
        return value

    def activation(self, name: str, default: str) -> Activation:
        """The activation that a field names.

        Raises:
          ModelError: it is none of ACTIVATIONS.
        """
        value = self.get(name, default)
        if value not in ACTIVATIONS:
            raise ModelError(f"{name} {value!r} is not supported: {', '.join(ACTIVATIONS)} are")
        return ACTIVATIONS[value]

    def refuse_unread(self) -> None:
        """Raises ModelError for the first field that is set and was not read."""
        for name, value in self._config.items():
            # A feature that is switched off needs no understanding.
            is_off = value is None or value is False or value in ({}, [])
            if name in self._read or name in HARMLESS_FIELDS or is_off or name.startswith("_"):
                continue
            raise ModelError(f"the model's configuration sets {name}, which headrace does not understand")
