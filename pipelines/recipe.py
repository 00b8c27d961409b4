"""Recipes of chains: stages in YAML, each a run whose rows are files or the results of another stage."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from headrace.engines.config_fields import flat_fields, from_flat
from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.files import join
from headrace.pipelines.selection import INPUT_OPTIONS

_CONFIGS: Mapping[str, type[GenerateConfig] | type[TranscribeConfig]] = {
    "generate": GenerateConfig,
    "transcribe": TranscribeConfig,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OWN = ("name", "job", "rows_of")
# The stage before has settled which rows there are and how they are cut.
_OF_FILES = (*INPUT_OPTIONS, "rows_per_part", "work_per_part", "id_column")
# What the stages after would not notice, and what belongs to a run of its own.
_OF_RUNS = ("retry_errors", "supervise")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One run of a chain."""

    name: str
    """Its name, and that of its directory below the chain's output."""
    rows_of: str | None
    """The stage whose results are its rows; None where they come from files."""
    config: GenerateConfig | TranscribeConfig
    """What it is told to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A chain: the first stage reads files, every other one the results of one before it."""

    output: str
    """Directory that holds a directory of results for each stage."""
    stages: tuple[Stage, ...]
    """The stages, each after the one whose rows it takes."""


def read_recipe(text: str) -> Recipe:
    """The chain that a recipe describes.

    Raises:
      InputError: it is no recipe, or a stage or an option is wrong; it says which and why.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"the recipe is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or set(content) != {"output", "stages"}:
        raise InputError("a recipe has `output: DIR` and `stages:`, and nothing else beside them")
    output, listed = content["output"], content["stages"]
    if not isinstance(output, str) or not isinstance(listed, list) or not listed:
        raise InputError("in the recipe `output` is a directory and `stages` a list of at least one stage")
    stages: list[Stage] = []
    for options in listed:
        stages.append(_stage(options, stages, output))
    return Recipe(output=output, stages=tuple(stages))


def _stage(options: Any, before: Sequence[Stage], output: str) -> Stage:
    if not isinstance(options, dict) or not isinstance(options.get("name"), str):
        raise InputError("a stage of the recipe is a mapping with a `name`")
    name = options["name"]
    known = [stage.name for stage in before]
    if not _NAME.fullmatch(name) or name in known:
        raise InputError(f"the name {name!r} of a stage is taken or no name: use letters, digits, - and _")
    job = options.get("job")
    if not isinstance(job, str) or job not in _CONFIGS:
        raise InputError(f"stage {name}: the job is {job!r}: give generate or transcribe")
    rows_of = options.get("rows_of", known[-1] if known else None)
    _check_rows(name, job, rows_of, known)
    values = {key: value for key, value in options.items() if key not in _OWN}
    return Stage(name=name, rows_of=rows_of, config=_config(name, job, rows_of, values, output))


def _check_rows(name: str, job: str, rows_of: str | None, known: Sequence[str]) -> None:
    if rows_of is None:
        return
    if rows_of not in known:
        raise InputError(
            f"stage {name}: rows_of is {rows_of!r}: give a stage before it ({', '.join(known) or '-'})"
        )
    if job == "transcribe":
        raise InputError(
            f"stage {name}: the results of {rows_of} are no recordings: transcribe in the first stage"
        )


def _config(
    name: str, job: str, rows_of: str | None, values: dict[str, Any], output: str
) -> GenerateConfig | TranscribeConfig:
    config_class = _CONFIGS[job]
    known = {each.field.name for each in flat_fields(config_class)} - {"output", *_OF_RUNS}
    for key in values:
        if key not in known:
            raise InputError(f"stage {name}: there is no option {key}: see headrace {job} --help")
        if rows_of is not None and key in _OF_FILES:
            raise InputError(f"stage {name}: leave {key} out: its rows are those of {rows_of}")
    if rows_of is not None:
        values = {**values, "inputs": (f"(results of {rows_of})",), "id_column": "id"}
    for key in ("inputs", "model"):
        if not values.get(key):
            raise InputError(f"stage {name}: no {key} given: add `{key}: ...`")
    if isinstance(values["inputs"], str):
        values = {**values, "inputs": [values["inputs"]]}
    tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return from_flat(config_class, {**tuples, "output": join(output, name)})
    except (TypeError, ValueError) as error:
        raise InputError(f"stage {name}: {error}") from error
