"""Datasets of the `datasets` library as tables: rows are read from its Arrow files, a few at a time."""

import functools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.pipelines.config import RunConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.files import without_query
from headrace.pipelines.listing import InputFile
from headrace.pipelines.parquet_tables import writable_type
from headrace.pipelines.scans import TableRow, TableScan

SCHEME = "dataset:"
_BATCH_ROWS = 64


def list_dataset(config: RunConfig) -> InputFile:
    """The split that a run was told, as the one file of its input.

    Raises:
      InputError: there is no such dataset, configuration or split.
    """
    name = config.dataset or ""
    if os.path.exists(os.path.expanduser(name)):
        name = os.path.abspath(os.path.expanduser(name))
    path = SCHEME + json.dumps([name, config.dataset_config, config.split])
    try:
        rows = len(_load(path))
    except Exception as error:  # the library raises errors of many kinds, of network and files too
        raise _cannot_load(name, error) from error
    source = "/".join([name.rstrip("/").rpartition("/")[2] if os.path.isabs(name) else name, config.split])
    return InputFile(path=path, source=source, size=rows)


def list_dataset_files(config: RunConfig) -> tuple[InputFile, ...]:
    """The files that a split is made of, sorted by source: they are read as they are, in place.

    Raises:
      InputError: there is no such dataset, configuration or split, or `save_to_disk` wrote it.
    """
    import datasets  # takes seconds

    name = os.path.expanduser(config.dataset or "")
    if any(os.path.exists(os.path.join(name, each)) for each in ("dataset_dict.json", "state.json")):
        raise InputError(
            f"save_to_disk wrote {name}, which is read in place anyway: leave stream_dataset out"
        )
    try:
        builder = datasets.load_dataset_builder(name, config.dataset_config)
        found = {str(split): files for split, files in (builder.config.data_files or {}).items()}
    except Exception as error:  # the library raises errors of many kinds, of network and files too
        raise _cannot_load(name, error) from error
    if config.split not in found:
        raise InputError(f"the dataset {name} has no files of a split {config.split!r}: {', '.join(found)}")
    files = [dataset_file(str(path), name) for path in found[config.split]]
    return tuple(sorted(files, key=lambda file: file.source))


def dataset_file(path: str, name: str) -> InputFile:
    """A file of this machine by its path, one of the hub by its address at the commit that was found."""
    if "://" not in path:
        state = os.stat(path)
        source = os.path.relpath(path, os.path.dirname(os.path.abspath(name)))
        return InputFile(path=path, source=source, size=state.st_size, modified=state.st_mtime)
    if not path.startswith("hf://"):
        return InputFile(path=path, source=without_query(path), size=None)
    from huggingface_hub import hf_hub_url

    # hf://datasets/USER/NAME@COMMIT/PATH
    repository, _, rest = path.removeprefix("hf://datasets/").partition("@")
    commit, _, inside = rest.partition("/")
    address = hf_hub_url(repository, inside, repo_type="dataset", revision=commit)
    return InputFile(path=address, source=f"{repository}/{inside}", size=None)


def _cannot_load(name: str, error: Exception) -> InputError:
    return InputError(f"cannot load the dataset {name}: {' '.join(str(error).split())[:500]}")


def is_dataset(path: str) -> bool:
    """Whether a path of an input is that of a dataset."""
    return path.startswith(SCHEME)


def scan_dataset(path: str, *, typed: Sequence[str]) -> TableScan:
    """What a split holds."""
    dataset = _load(path)
    schema: pa.Schema = dataset.features.arrow_schema
    types = {name: writable_type(schema.field(name).type) for name in typed if name in schema.names}
    return TableScan(rows=len(dataset), columns=tuple(dataset.column_names), types=types)


def read_dataset(path: str, start: int, stop: int, columns: Sequence[str]) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a split, with the values of `columns` only."""
    dataset = _load(path).select_columns(list(columns))
    for first in range(start, stop, _BATCH_ROWS):
        batch: dict[str, list[Any]] = dataset[first : min(first + _BATCH_ROWS, stop)]
        for row in range(first, min(first + _BATCH_ROWS, stop)):
            yield TableRow(row, {name: values[row - first] for name, values in batch.items()})


@functools.lru_cache(maxsize=4)
def _load(path: str) -> Any:
    """The split, mapped into memory; audio and images stay encoded, whose decoders here would want torch."""
    import datasets  # takes seconds

    name, config, split = json.loads(path.removeprefix(SCHEME))
    if os.path.exists(os.path.join(name, "dataset_dict.json")):
        found: Any = datasets.load_from_disk(os.path.join(name, split))
    elif os.path.exists(os.path.join(name, "state.json")):
        found = datasets.load_from_disk(name)
    else:
        found = datasets.load_dataset(name, config, split=split)
    for column, feature in found.features.items():
        if isinstance(feature, datasets.Audio | datasets.Image):
            found = found.cast_column(column, type(feature)(decode=False))
    return found.with_format(None)
