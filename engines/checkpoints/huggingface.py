"""The Hugging Face layout: config.json, safetensors in one file or in shards, tokenizer files."""

from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np

from headrace.engines.checkpoints.contents import Contents, read_json
from headrace.engines.checkpoints.fast_tokenizer import FastTokenizer
from headrace.engines.checkpoints.safetensors_file import SafetensorsFile
from headrace.engines.checkpoints.tokenizer_files import read_huggingface_tokenizer
from headrace.engines.errors import ModelError


class _ShardedTensors:
    def __init__(self, files: dict[str, SafetensorsFile]) -> None:
        self._files = files

    def names(self) -> Set[str]:
        return self._files.keys()

    def read(self, name: str) -> np.ndarray:
        return self._files[name].read(name)

    def unload(self) -> None:
        for file in set(self._files.values()):
            file.unload()


def open_huggingface(directory: Path, *, with_weights: bool = True) -> Contents:
    """The contents of a directory in the Hugging Face layout; without weights none are looked for.

    Raises:
      ModelError: config.json is missing, the architecture would need its own code, a shard is missing or cut.
    """
    config = read_json(directory / "config.json")
    if not config:
        raise ModelError(f"no config.json in {str(directory)!r}: not a whole Hugging Face checkpoint")
    _refuse_custom_code(config, directory)
    return Contents(
        config=config,
        generation_config=read_json(directory / "generation_config.json"),
        preprocessor_config=read_json(directory / "preprocessor_config.json"),
        tensors=_ShardedTensors(_map_tensors(directory) if with_weights else {}),
        make_tokenizer=lambda: FastTokenizer.of(read_huggingface_tokenizer(directory)),
    )


def _refuse_custom_code(config: dict[str, Any], directory: Path) -> None:
    if "auto_map" not in config:
        return
    from transformers import CONFIG_MAPPING

    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise ModelError(
            f"the model in {str(directory)!r} (model_type {model_type!r}) needs code of its own "
            "(trust_remote_code), which headrace never runs: use a model of a built-in architecture"
        )


def _map_tensors(directory: Path) -> dict[str, SafetensorsFile]:
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if single.is_file():
        shards = [single]
    elif index.is_file():
        return _map_index(directory, index)
    else:
        shards = sorted(directory.glob("*.safetensors"))
        if not shards:
            indexes = sorted(directory.glob("*.safetensors.index.json"))
            return _map_index(directory, indexes[0])
    if len(shards) > 1:
        raise ModelError(
            f"{len(shards)} safetensors files in {str(directory)!r} and no model.safetensors.index.json: "
            "fetch the index too"
        )
    file = SafetensorsFile(shards[0])
    return dict.fromkeys(file.names(), file)


def _map_index(directory: Path, index: Path) -> dict[str, SafetensorsFile]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{str(index)!r} has no weight_map")
    names = sorted(set(weight_map.values()))
    for name in names:
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise ModelError(
                f"{str(index)!r} names {name!r}, wanted a safetensors file of the same directory"
            )
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ModelError(
            f"{len(missing)} of {len(names)} shards are missing in {str(directory)!r}, first {missing[0]!r}: "
            "fetch the model again"
        )
    files = {name: SafetensorsFile(directory / name) for name in names}
    held = {name: set(file.names()) for name, file in files.items()}
    for tensor, name in weight_map.items():
        if tensor not in held[name]:
            raise ModelError(
                f"{name!r} in {str(directory)!r} has no tensor {tensor!r}, though the index says so"
            )
    return {tensor: files[name] for tensor, name in weight_map.items()}
