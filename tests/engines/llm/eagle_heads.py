"""EAGLE heads for tiny Llamas in the published layout, and the published algorithm in plain NumPy."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class PlainLlama:
    """A tiny Llama whose every token is computed from all tokens before it, without pages."""

    config: dict
    tensors: Tensors

    @classmethod
    def read(cls, directory: Path) -> "PlainLlama":
        config = json.loads((directory / "config.json").read_text())
        return cls(config, load_file(directory / "model.safetensors"))

    def hidden(self, tokens: list[int]) -> np.ndarray:
        """Normed hidden states after the last layer, [tokens, hidden]."""
        states = self.tensors["model.embed_tokens.weight"][tokens]
        for index in range(self.config["num_hidden_layers"]):
            states = self.layer(self.tensors, f"model.layers.{index}", states)
        return self.norm(states, self.tensors["model.norm.weight"])

    def likeliest(self, hidden: np.ndarray) -> int:
        return int(np.argmax(hidden @ self.tensors["lm_head.weight"].T))

    def head_states(self, head: Tensors, tokens: list[int], hidden: np.ndarray) -> np.ndarray:
        """What a head makes of hidden states and the tokens after each of them."""
        pairs = np.concatenate([self.tensors["model.embed_tokens.weight"][tokens], hidden], axis=-1)
        return self.layer(head, "layers.0", pairs @ head["fc.weight"].T + head.get("fc.bias", 0.0))

    def proposals(self, head: Tensors, tokens: list[int], hidden: np.ndarray, count: int) -> list[int]:
        """A chain after `tokens`, from the hidden states of all but the last of them."""
        states, made = hidden[: len(tokens) - 1], []
        for _ in range(count):
            last = self.head_states(head, [*tokens, *made][1:], states)[-1]
            made.append(self.likeliest(last))
            states = np.concatenate([states, last[None]])
        return made

    def norm(self, states: np.ndarray, scale: np.ndarray) -> np.ndarray:
        mean_square = np.mean(np.square(states), axis=-1, keepdims=True)
        return states / np.sqrt(mean_square + self.config["rms_norm_eps"]) * scale

    def layer(self, tensors: Tensors, prefix: str, states: np.ndarray) -> np.ndarray:
        def product(name: str, inputs: np.ndarray) -> np.ndarray:
            return inputs @ tensors[f"{prefix}.{name}.weight"].T

        norm = tensors.get(f"{prefix}.input_layernorm.weight")
        entering = states if norm is None else self.norm(states, norm)
        queries, keys, values = (product(f"self_attn.{name}_proj", entering) for name in "qkv")
        states = states + product("self_attn.o_proj", self._attend(queries, keys, values))
        entering = self.norm(states, tensors[f"{prefix}.post_attention_layernorm.weight"])
        gate = product("mlp.gate_proj", entering)
        return states + product(
            "mlp.down_proj", gate / (1 + np.exp(-gate)) * product("mlp.up_proj", entering)
        )

    def _attend(self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        count, size = len(queries), self.config["head_dim"]
        groups = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        queries = self._rotate(queries.reshape(count, -1, size))
        keys = np.repeat(self._rotate(keys.reshape(count, -1, size)), groups, axis=1)
        values = np.repeat(values.reshape(count, -1, size), groups, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(size)
        scores = np.where(np.tri(count, dtype=bool)[None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, values).reshape(count, -1)

    def _rotate(self, vectors: np.ndarray) -> np.ndarray:
        count, _, size = vectors.shape
        frequencies = self.config["rope_parameters"]["rope_theta"] ** (-np.arange(0, size, 2) / size)
        angles = (np.arange(count)[:, None] * frequencies)[:, None, :]
        first, second = np.split(vectors, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def random_head(model: PlainLlama, scale: float = 0.2) -> Tensors:
    """Tensors of a head with random weights, without a bias, an embedding and an output head."""
    config = model.config
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {
        "fc": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj": (queries, hidden),
        "layers.0.self_attn.k_proj": (keys, hidden),
        "layers.0.self_attn.v_proj": (keys, hidden),
        "layers.0.self_attn.o_proj": (hidden, queries),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    rng = np.random.default_rng(0)
    made = {
        f"{name}.weight": rng.normal(0, scale, shape).astype(np.float32) for name, shape in shapes.items()
    }
    return made | {"layers.0.post_attention_layernorm.weight": np.ones(hidden, np.float32)}


def mild_llama(model: PlainLlama) -> PlainLlama:
    """The same with layers that add little to the embeddings, so that one layer can foresee its states."""
    tensors = {
        name: tensor * np.float32(0.03) if "o_proj" in name or "down_proj" in name else tensor
        for name, tensor in model.tensors.items()
    }
    return PlainLlama(model.config, tensors)


def fitted_head(model: PlainLlama) -> Tensors:
    """A head that often is right: its `fc`, with a bias, leads to the next hidden states by least squares.

    Some noise makes its choices depend on the hidden states and on its attention.
    """
    head, rng = random_head(model, scale=0.1), np.random.default_rng(1)
    pairs, wanted = [], []
    for _ in range(40):
        tokens = rng.integers(32, model.config["vocab_size"], 60).tolist()
        hidden = model.hidden(tokens)
        embedded = model.tensors["model.embed_tokens.weight"][tokens[1:]]
        pairs.append(np.concatenate([embedded, hidden[:-1], np.ones((len(embedded), 1))], axis=-1))
        wanted.append(hidden[1:])
    solved = np.linalg.lstsq(np.concatenate(pairs), np.concatenate(wanted), rcond=None)[0].astype(np.float32)
    size = model.config["hidden_size"]
    solved[size:-1] += rng.normal(0, 0.03, (size, size)).astype(np.float32)
    return head | {"fc.weight": np.ascontiguousarray(solved[:-1].T), "fc.bias": solved[-1].copy()}


def write_head(directory: Path, model: PlainLlama, tensors: Tensors, **changes) -> str:
    """A directory with a head's config.json and tensors, as a spec."""
    directory.mkdir(parents=True)
    config = model.config | {"num_hidden_layers": 1, "bias": "fc.bias" in tensors}
    (directory / "config.json").write_text(json.dumps(config | changes))
    save_file(tensors, directory / "model.safetensors")
    return str(directory)


def simulate(model: PlainLlama, head: Tensors, prompt: list[int], outputs: list[int], size: int) -> dict:
    """What chains of `size` proposals come to where the model writes `outputs`, the first by its prefill."""
    hidden = model.hidden([*prompt, *outputs])
    counts = {"speculative_steps": 0, "draft_tokens": 0, "accepted_tokens": 0}
    made = 1
    while made < len(outputs):
        tokens = [*prompt, *outputs[:made]]
        chain = model.proposals(head, tokens, hidden, min(size, len(outputs) - made - 1))
        right = [own == other for own, other in zip(chain, outputs[made:], strict=False)]
        num_right = [*right, False].index(False)
        counts["speculative_steps"] += 1
        counts["draft_tokens"] += len(chain)
        counts["accepted_tokens"] += num_right
        made += num_right + 1
    return counts
