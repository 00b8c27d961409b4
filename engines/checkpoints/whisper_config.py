"""Hugging Face configs of a Whisper model whose layout stores none."""

import re
from typing import Any

from headrace.engines.checkpoints.ctranslate2_file import Ct2File
from headrace.engines.checkpoints.ctranslate2_names import count_layers
from headrace.engines.errors import ModelError

_HEAD_DIM = 64  # of every Whisper model; used where the file does not store the number of heads
_ENGLISH_VOCAB_SIZE = 51864  # the multilingual vocabularies have 51865 or more
_ACTIVATIONS = {0: "relu", 1: "gelu_new", 2: "silu", 3: "gelu"}


def whisper_config(file: Ct2File, ids: dict[str, int]) -> dict[str, Any]:
    """The config.json of a model.bin, derived from its tensors; `ids` are those of the special tokens."""
    vocab_size, d_model = file.shape("decoder/embeddings/weight")
    activation = file.scalar("decoder/activation", 3)
    if activation not in _ACTIVATIONS:
        raise ModelError(f"{str(file.path)!r} has the unknown activation {activation}")
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": d_model,
        "vocab_size": vocab_size,
        "num_mel_bins": file.shape("encoder/conv1/weight")[1],
        "max_source_positions": file.shape("encoder/position_encodings/encodings")[0],
        "max_target_positions": file.shape("decoder/position_encodings/encodings")[0],
        "activation_function": _ACTIVATIONS[activation],
        "scale_embedding": bool(file.scalar("decoder/scale_embeddings", 0)),
        "tie_word_embeddings": file.aliases.get("decoder/projection/weight") == "decoder/embeddings/weight"
        or "decoder/projection/weight" not in file,
        "is_encoder_decoder": True,
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_layers"] = count_layers(file, side)
        config[f"{side}_attention_heads"] = file.scalar(f"{side}/num_heads", d_model // _HEAD_DIM)
        config[f"{side}_ffn_dim"] = file.shape(f"{side}/layer_0/ffn/linear_0/weight")[0]
    return config | _special_ids(ids)


def whisper_generation_config(
    config: dict[str, Any], stored: dict[str, Any], ids: dict[str, int]
) -> dict[str, Any]:
    """The generation_config.json of a faster-whisper directory.

    `stored` is the directory's config.json (suppress_ids, suppress_ids_begin, alignment_heads). Languages are
    read from the vocabulary: the tokens between <|startoftranscript|> and <|translate|>.
    """
    is_multilingual = config["vocab_size"] > _ENGLISH_VOCAB_SIZE
    made = {
        "is_multilingual": is_multilingual,
        "suppress_tokens": list(stored.get("suppress_ids") or []),
        "begin_suppress_tokens": list(stored.get("suppress_ids_begin") or []),
        "no_timestamps_token_id": ids.get("<|notimestamps|>"),
        "prev_sot_token_id": ids.get("<|startofprev|>"),
        "max_length": config["max_target_positions"],
        "max_initial_timestamp_index": 50,
        "return_timestamps": False,
    } | _special_ids(ids)
    if stored.get("alignment_heads"):
        made["alignment_heads"] = stored["alignment_heads"]
    if is_multilingual:
        made["lang_to_id"] = _languages(ids)
        made["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return made


def whisper_preprocessor_config(config: dict[str, Any]) -> dict[str, Any]:
    """The preprocessor_config.json that every Whisper model of this many mel bins has."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config["num_mel_bins"],
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
    }


def _special_ids(ids: dict[str, int]) -> dict[str, Any]:
    end = ids["<|endoftext|>"]
    return {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
    }


def _languages(ids: dict[str, int]) -> dict[str, int]:
    first, last = ids["<|startoftranscript|>"], ids["<|translate|>"]
    return {
        token: index
        for token, index in sorted(ids.items(), key=lambda item: item[1])
        if first < index < last and re.fullmatch(r"<\|[a-z]{2,3}\|>", token)
    }
