"""Which Hugging Face architectures map onto the decoder, and how: configuration fields and weight names."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ModelError
from headrace.engines.llm.config import ModelConfig, RopeConfig
from headrace.engines.llm.model import Decoder

# fmt: off
HARMLESS_FIELDS = frozenset((
    "architectures", "attention_dropout", "attn_implementation", "bos_token_id", "chunk_size_feed_forward",
    "dtype", "eos_token_id", "id2label", "initializer_range", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "model_type", "output_attentions", "output_hidden_states",
    "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "torch_dtype",
    "transformers.js_config", "transformers_version", "unk_token_id", "use_cache",
))
# fmt: on
"""Fields that change nothing in inference, or that are read elsewhere (the token ids)."""


def read_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """The decoder's configuration from a `config.json` in the Hugging Face form.

    Raises:
      ModelError: an architecture, or a field that is set, that is not understood; it is named.
    """
    model_type = config.get("model_type")
    reader = READERS.get(str(model_type))
    if reader is None:
        raise ModelError(f"architecture {model_type!r} is not supported: known are {', '.join(READERS)}")
    fields = _Fields(config)
    model = reader(fields)
    fields.refuse_unread()
    return model


def load_decoder(checkpoint: Checkpoint, config: ModelConfig, dtype: jnp.dtype) -> Decoder:
    """The decoder with the checkpoint's weights.

    Raises:
      ModelError: a weight is missing or has another shape than the configuration says.
    """
    decoder = nnx.eval_shape(lambda: Decoder(config, dtype))
    graph, state = nnx.split(decoder)
    sources = _weight_sources(config)
    available = checkpoint.tensor_names()

    def load(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        *module, kind = path[:-1]
        names = sources[".".join(map(str, (*module, kind)))]
        missing = [name for name in names if name not in available]
        if missing:
            raise ModelError(f"weight {missing[0]} is missing in {checkpoint.model.spec}")
        parts = [checkpoint.tensor(name) for name in names]
        merged = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=0)
        if kind == "kernel":
            merged = merged.T
        if merged.shape != leaf.shape:
            raise ModelError(
                f"weight {' + '.join(names)} in {checkpoint.model.spec} has shape {merged.shape}, "
                f"the configuration says {leaf.shape}"
            )
        return jnp.asarray(np.ascontiguousarray(merged).astype(leaf.dtype))

    leaves, treedef = jax.tree_util.tree_flatten_with_path(state)
    loaded = [load(tuple(_key_name(key) for key in path), leaf) for path, leaf in leaves]
    return nnx.merge(graph, jax.tree_util.tree_unflatten(treedef, loaded))


def _key_name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))


def _weight_sources(config: ModelConfig) -> dict[str, list[str]]:
    """Module path -> the checkpoint's tensors that make it up, in order of rows."""
    sources = {
        "embedding": ["model.embed_tokens.weight"],
        "norm.scale": ["model.norm.weight"],
        "head": ["lm_head.weight"],
    }
    projections = {
        "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "output": ["self_attn.o_proj"],
        "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
    }
    for index in range(config.num_layers):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"
        sources[f"{ours}.attention_norm.scale"] = [f"{theirs}.input_layernorm.weight"]
        sources[f"{ours}.mlp_norm.scale"] = [f"{theirs}.post_attention_layernorm.weight"]
        for name, parts in projections.items():
            sources[f"{ours}.{name}.kernel"] = [f"{theirs}.{part}.weight" for part in parts]
            sources[f"{ours}.{name}.bias"] = [f"{theirs}.{part}.bias" for part in parts]
    return sources


class _Fields:
    """A configuration that remembers which of its fields were read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        value = self._config.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ModelError(f"the model's configuration has no {name}")
        return value

    def refuse_unread(self) -> None:
        for name, value in self._config.items():
            # A feature that is switched off needs no understanding.
            is_off = value is None or value is False or value in ({}, [])
            if name in self._read or name in HARMLESS_FIELDS or is_off or name.startswith("_"):
                continue
            raise ModelError(f"the model's configuration sets {name}, which headrace does not understand")


def _read_llama(fields: _Fields) -> ModelConfig:
    hidden_size, num_heads = fields.need("hidden_size"), fields.need("num_attention_heads")
    if fields.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act {fields.get('hidden_act')!r} is not supported: silu is")
    if fields.get("rope_interleaved", False):
        raise ModelError("rope_interleaved is not supported")
    has_bias = fields.get("attention_bias", False)
    return ModelConfig(
        vocab_size=fields.need("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.need("intermediate_size"),
        num_layers=fields.need("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.get("num_key_value_heads", num_heads),
        head_dim=fields.get("head_dim", hidden_size // num_heads),
        norm_eps=fields.get("rms_norm_eps", 1e-6),
        max_position=fields.get("max_position_embeddings", 2048),
        rope=_read_rope(fields),
        tie_embeddings=fields.get("tie_word_embeddings", False),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=fields.get("mlp_bias", False),
    )


def _read_rope(fields: _Fields) -> RopeConfig:
    """Reads the older fields (rope_theta, rope_scaling) and the newer one (rope_parameters)."""
    parameters = dict(fields.get("rope_parameters", {})) | dict(fields.get("rope_scaling", {}))
    theta = float(parameters.pop("rope_theta", fields.get("rope_theta", 10_000.0)))
    kind = parameters.pop("rope_type", parameters.pop("type", "default"))
    parameters.pop("type", None)
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"rope scaling {kind!r} is not supported: default, linear and llama3 are")
    known = {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_max_position",
    }
    unknown = [name for name, value in parameters.items() if name not in known and value is not None]
    if unknown:
        raise ModelError(f"the model's rope scaling sets {unknown[0]}, which headrace does not understand")
    given = {known[name]: value for name, value in parameters.items() if value is not None}
    divisors = fields.get("rope_freq_factors")  # as GGUF files store them
    if divisors is not None:
        given["frequency_divisors"] = tuple(float(value) for value in divisors)
    return RopeConfig(theta=theta, kind=kind, **given)


READERS: dict[str, Callable[[_Fields], ModelConfig]] = {"llama": _read_llama}
