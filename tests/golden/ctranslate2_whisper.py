"""CTranslate2 Whisper weights as a transformers state dict, for the golden scripts only.

Written apart from headrace's own reader, so that the goldens do not share its mistakes.
"""

import struct
from pathlib import Path

import numpy as np
import torch

DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
NORM = {"gamma": "weight", "beta": "bias"}


def read_model(parts: list[Path]) -> dict[str, np.ndarray]:
    """The variables of a model.bin (format version 6) whose bytes are the parts, joined in order."""
    data = b"".join(part.read_bytes() for part in parts)
    at = 0

    def take(layout: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize(layout)
        return value

    def take_string() -> str:
        nonlocal at
        end = at + 2 + struct.unpack_from("<H", data, at)[0]
        text = data[at + 2 : end - 1].decode()
        at = end
        return text

    version, spec, _revision = take("I"), take_string(), take("I")
    assert (version, spec) == (6, "WhisperSpec"), (version, spec)
    variables = {}
    for _ in range(take("I")):
        name = take_string()
        shape = [take("I") for _ in range(take("B"))]
        dtype, num_bytes = DTYPES[take("B")], take("I")
        variables[name] = np.frombuffer(data, dtype, num_bytes // np.dtype(dtype).itemsize, at).reshape(shape)
        at += num_bytes
    for _ in range(take("I")):
        alias, target = take_string(), take_string()
        variables[alias] = variables[target]
    assert at == len(data), f"{len(data) - at} bytes left over"
    return variables


def state_dict(variables: dict[str, np.ndarray], num_layers: int) -> dict[str, torch.Tensor]:
    """Float32 tensors under the names of WhisperForConditionalGeneration."""
    state: dict[str, torch.Tensor] = {}

    def copy(source: str, *targets: str) -> None:
        for suffix in ("weight", "bias"):
            value = torch.from_numpy(variables[f"{source}/{suffix}"].astype(np.float32))
            for target, piece in zip(targets, value.chunk(len(targets)), strict=True):
                if not (target.endswith("k_proj") and suffix == "bias"):
                    state[f"{target}.{suffix}"] = piece.clone()
                else:
                    assert not piece.any(), "Whisper's keys have no bias"

    def copy_norm(source: str, target: str) -> None:
        for ours, theirs in NORM.items():
            state[f"{target}.{theirs}"] = torch.from_numpy(variables[f"{source}/{ours}"].astype(np.float32))

    for side in ("encoder", "decoder"):
        positions = variables[f"{side}/position_encodings/encodings"].astype(np.float32)
        state[f"model.{side}.embed_positions.weight"] = torch.from_numpy(positions)
        copy_norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for i in range(num_layers):
            source, target = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            attention = f"{target}.self_attn"
            copy(f"{source}/self_attention/linear_0", *(f"{attention}.{x}_proj" for x in "qkv"))
            copy(f"{source}/self_attention/linear_1", f"{attention}.out_proj")
            copy_norm(f"{source}/self_attention/layer_norm", f"{target}.self_attn_layer_norm")
            copy(f"{source}/ffn/linear_0", f"{target}.fc1")
            copy(f"{source}/ffn/linear_1", f"{target}.fc2")
            copy_norm(f"{source}/ffn/layer_norm", f"{target}.final_layer_norm")
            if side == "decoder":
                attention = f"{target}.encoder_attn"
                copy(f"{source}/attention/linear_0", f"{attention}.q_proj")
                copy(f"{source}/attention/linear_1", f"{attention}.k_proj", f"{attention}.v_proj")
                copy(f"{source}/attention/linear_2", f"{attention}.out_proj")
                copy_norm(f"{source}/attention/layer_norm", f"{target}.encoder_attn_layer_norm")
    copy("encoder/conv1", "model.encoder.conv1")
    copy("encoder/conv2", "model.encoder.conv2")
    embeddings = torch.from_numpy(variables["decoder/embeddings/weight"].astype(np.float32))
    state["model.decoder.embed_tokens.weight"] = state["proj_out.weight"] = embeddings
    return state
