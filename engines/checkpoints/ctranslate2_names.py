"""Where each Hugging Face Whisper tensor lies in a CTranslate2 WhisperSpec."""

from typing import NamedTuple

from headrace.engines.checkpoints.ctranslate2_file import Ct2File
from headrace.engines.errors import ModelError

_ALL = slice(None)


class Source(NamedTuple):
    variable: str
    rows: slice


def whisper_sources(file: Ct2File) -> dict[str, Source]:
    """The variable, and the rows of it, that each Hugging Face tensor is.

    CTranslate2 keeps the projections of attention fused, one above the other: `linear_0` of self-attention is
    q, k, v; of cross-attention `linear_0` is q and `linear_1` is k, v. Hugging Face's k_proj has no bias: the
    file's is zero and is left out.

    Raises:
      ModelError: a variable that every Whisper model has is not in the file.
    """
    sources = {
        "model.encoder.embed_positions.weight": "encoder/position_encodings/encodings",
        "model.decoder.embed_positions.weight": "decoder/position_encodings/encodings",
        "model.decoder.embed_tokens.weight": "decoder/embeddings/weight",
    }
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            sources[f"model.encoder.{conv}.{kind}"] = f"encoder/{conv}/{kind}"
    found = {name: Source(variable, _ALL) for name, variable in sources.items()}
    for side in ("encoder", "decoder"):
        found |= _layer_norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        for layer in range(count_layers(file, side)):
            found |= _layer(file, side, layer)
    projection = "decoder/projection/weight"
    if projection in file and file.aliases.get(projection) != "decoder/embeddings/weight":
        found["proj_out.weight"] = Source(projection, _ALL)
    missing = sorted({source.variable for source in found.values() if source.variable not in file})
    if missing:
        raise ModelError(
            f"{str(file.path)!r} is no Whisper model that can be read: {missing[0]!r} is missing"
        )
    return found


def count_layers(file: Ct2File, side: str) -> int:
    """Layers of the encoder or the decoder."""
    numbers = {
        int(name.split("/")[1].removeprefix("layer_"))
        for name in file.variables
        if name.startswith(f"{side}/layer_") and name.split("/")[1].removeprefix("layer_").isdigit()
    }
    return max(numbers, default=-1) + 1


def _layer(file: Ct2File, side: str, layer: int) -> dict[str, Source]:
    hf, ct2 = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
    found = _layer_norm(f"{hf}.final_layer_norm", f"{ct2}/ffn/layer_norm")
    found |= _linear(f"{hf}.fc1", f"{ct2}/ffn/linear_0")
    found |= _linear(f"{hf}.fc2", f"{ct2}/ffn/linear_1")
    found |= _layer_norm(f"{hf}.self_attn_layer_norm", f"{ct2}/self_attention/layer_norm")
    found |= _fused(file, f"{hf}.self_attn", f"{ct2}/self_attention/linear_0", "qkv")
    found |= _linear(f"{hf}.self_attn.out_proj", f"{ct2}/self_attention/linear_1")
    if side == "decoder":
        found |= _layer_norm(f"{hf}.encoder_attn_layer_norm", f"{ct2}/attention/layer_norm")
        found |= _fused(file, f"{hf}.encoder_attn", f"{ct2}/attention/linear_0", "q")
        found |= _fused(file, f"{hf}.encoder_attn", f"{ct2}/attention/linear_1", "kv")
        found |= _linear(f"{hf}.encoder_attn.out_proj", f"{ct2}/attention/linear_2")
    return found


def _layer_norm(hf: str, ct2: str) -> dict[str, Source]:
    return {f"{hf}.weight": Source(f"{ct2}/gamma", _ALL), f"{hf}.bias": Source(f"{ct2}/beta", _ALL)}


def _linear(hf: str, ct2: str) -> dict[str, Source]:
    return {f"{hf}.weight": Source(f"{ct2}/weight", _ALL), f"{hf}.bias": Source(f"{ct2}/bias", _ALL)}


def _fused(file: Ct2File, hf: str, ct2: str, letters: str) -> dict[str, Source]:
    width = file.shape(f"{ct2}/weight")[0] // len(letters)
    found = {}
    for place, letter in enumerate(letters):
        rows = slice(place * width, (place + 1) * width)
        found[f"{hf}.{letter}_proj.weight"] = Source(f"{ct2}/weight", rows)
        if letter != "k":
            found[f"{hf}.{letter}_proj.bias"] = Source(f"{ct2}/bias", rows)
    return found
