"""__run/run.json: what was run on what, so that the same command can go on and another one is refused."""

import base64
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from headrace.engines.config_fields import to_flat
from headrace.pipelines.commit import run_directory, scratch_directory
from headrace.pipelines.config import RunConfig
from headrace.pipelines.errors import OutputError
from headrace.pipelines.files import exists, read_bytes, without_query, write_whole
from headrace.pipelines.fingerprint import SCHEMA_VERSION, as_json
from headrace.pipelines.shards import Cut, Shard, ShardFile

_PACKAGES = (
    "headrace",
    "apache-beam",
    "flax",
    "jax",
    "jaxlib",
    "numpy",
    "pyarrow",
    "tokenizers",
    "transformers",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecord:
    """The model of a run."""

    spec: str
    """As the run was told."""
    format: str
    """Layout of the checkpoint."""
    revision: str | None
    """Commit that a hub's revision was resolved to."""
    fingerprint: str
    """Commit, or hash of the files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The content of run.json."""

    schema_version: int = SCHEMA_VERSION
    """Version of the results' columns and of this record."""
    job: str
    """generate or transcribe."""
    state: str = "running"
    """running (or killed), broken, or done."""
    config: Mapping[str, Any]
    """The whole configuration, addresses without their queries."""
    parameters: Mapping[str, Any]
    """The options that a result depends on: they must stay as they are."""
    model: ModelRecord
    """The model: its fingerprint must stay as it is."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of Python and of the packages, of the last launch."""
    devices: Sequence[str] = ()
    """Devices that ran the parts."""
    root: str
    """Directory that the sources are relative to."""
    shards: Sequence[Shard]
    """The listing of the input, in shards."""
    kept: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Input columns that are carried through, with their types."""
    totals: Mapping[str, Any] = field(default_factory=dict)
    """Rows, errors, units and seconds of the finished run."""
    launches: Sequence[Mapping[str, Any]] = ()
    """When it was launched, how often, and what each launch did."""


def record_config(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON values; signed addresses lose their signatures."""
    values = {name: as_json(value) for name, value in to_flat(config).items()}
    inputs = [without_query(each) for each in config.inputs]
    return {
        **values,
        "inputs": inputs,
        "output": without_query(config.output),
        "model": without_query(config.model),
    }


def current_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results and speed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read_record(output: str) -> RunRecord | None:
    """The record of the run in a directory, None where there is none.

    Raises:
      OutputError: there is one that this version does not understand.
    """
    path = run_directory(output, "run.json")
    if not exists(path):
        return None
    try:
        content = json.loads(read_bytes(path))
        version = content["schema_version"]
        if version == SCHEMA_VERSION:
            return _from_json(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"cannot understand {path}: choose another output directory") from error
    raise OutputError(
        f"{output} holds a run of output version {version}, this is version {SCHEMA_VERSION}: "
        "choose another output directory"
    )


def write_record(output: str, record: RunRecord) -> None:
    """Replaces run.json.

    Raises:
      OSError: it cannot be written.
    """
    content = json.dumps(_to_json(record), indent=1).encode()
    write_whole(run_directory(output, "run.json"), content, scratch=scratch_directory(output))


def differences(record: RunRecord, job: str, model: ModelRecord, parameters: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the run in a directory began, each in a few words."""
    found = []
    if record.job != job:
        found.append(f"the job was {record.job} and is {job}")
    if record.model.fingerprint != model.fingerprint:
        found.append(f"the model was {record.model.spec} and is {model.spec}")
        if record.model.spec == model.spec:
            found[-1] = f"the files of the model {model.spec} are others"
    if record.job == job:
        for name in sorted({*record.parameters, *parameters}):
            before, now = record.parameters.get(name), parameters.get(name)
            if before != now:
                found.append(f"{name} {_change(before, now)}")
    return found


def _change(before: Any, now: Any) -> str:
    """The change in figures or single words; a text of the user's is not repeated."""
    shown = [json.dumps(each) for each in (before, now)]
    if any(len(each) > 24 or " " in each.strip('"') for each in shown):
        return "is another"
    return f"was {shown[0]} and is {shown[1]}"


def _to_json(record: RunRecord) -> dict[str, Any]:
    content = {each.name: getattr(record, each.name) for each in fields(record)}
    return {
        **content,
        "model": asdict(record.model),
        "shards": [_shard_to_json(each) for each in record.shards],
        "kept": {
            "columns": {each.name: str(each.type) for each in record.kept},
            "arrow_schema": base64.b64encode(record.kept.serialize().to_pybytes()).decode(),
        },
    }


def _from_json(content: Mapping[str, Any]) -> RunRecord:
    kept = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["kept"]["arrow_schema"])))
    known = {each.name for each in fields(RunRecord)}
    values = {name: value for name, value in content.items() if name in known}
    return RunRecord(
        **{
            **values,
            "model": ModelRecord(**content["model"]),
            "shards": tuple(_shard_from_json(each) for each in content["shards"]),
            "devices": tuple(content["devices"]),
            "launches": tuple(content["launches"]),
            "kept": kept,
        }
    )


def _shard_to_json(shard: Shard) -> dict[str, Any]:
    files = [
        [each.source, each.size, each.modified, *(["gone"] if each.gone else [])] for each in shard.files
    ]
    return {
        "index": shard.index,
        "table": shard.is_table,
        "rows": shard.table_rows,
        "taken": shard.taken,
        "cuts": [[cut.stop, round(cut.work, 3)] for cut in shard.cuts],
        "files": files,
    }


def _shard_from_json(content: Mapping[str, Any]) -> Shard:
    files = tuple(
        ShardFile(
            source=each[0],
            size=each[1],
            modified=next((value for value in each[2:] if isinstance(value, int | float)), None),
            gone="gone" in each[2:],
        )
        for each in content["files"]
    )
    return Shard(
        index=content["index"],
        is_table=content["table"],
        files=files,
        table_rows=content["rows"],
        taken=content.get("taken"),
        cuts=tuple(Cut(*each) for each in content.get("cuts", ())),
    )
