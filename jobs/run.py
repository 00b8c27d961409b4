"""Both jobs as Python functions: the options of the command line as keyword arguments."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.jobs.beam_options import check_beam_args
from headrace.jobs.logs import quiet_libraries
from headrace.jobs.names import nearest

if TYPE_CHECKING:
    from headrace.pipelines import Progress, RunSummary

Path = str | os.PathLike[str]
Inputs = Path | Iterable[Path]


def run_generate(
    inputs: Inputs,
    output: Path,
    model: Path,
    *,
    beam_args: Sequence[str] = (),
    on_progress: "Callable[[Progress], None] | None" = None,
    **options: Any,
) -> "RunSummary":
    """Summary of a run that wrote an answer for each prompt to `output`, as `headrace generate` does.

    `options` are the fields of `headrace.pipelines.GenerateConfig`, for example `max_tokens=64, chat=True`.
    The same call again takes up a run that was broken off.

    Raises:
      ValueError: an option, the input, the model or the output cannot be used; nothing was run.
      TypeError: there is no such option.
    """
    quiet_libraries()
    from headrace import pipelines
    from headrace.jobs.command import run_job

    config = _config(pipelines.GenerateConfig, _paths(inputs, output, model), options)
    check_beam_args(beam_args)
    return run_job(config, beam_args, on_progress)


def run_transcribe(
    inputs: Inputs,
    output: Path,
    model: Path,
    *,
    beam_args: Sequence[str] = (),
    on_progress: "Callable[[Progress], None] | None" = None,
    **options: Any,
) -> "RunSummary":
    """Summary of a run that wrote a transcript of each recording to `output`.

    `options` are the fields of `headrace.pipelines.TranscribeConfig`, for example `language="en"`.
    The same call again takes up a run that was broken off.

    Raises:
      ValueError: an option, the input, the model or the output cannot be used; nothing was run.
      TypeError: there is no such option.
    """
    quiet_libraries()
    from headrace import pipelines
    from headrace.jobs.command import run_job

    config = _config(pipelines.TranscribeConfig, _paths(inputs, output, model), options)
    check_beam_args(beam_args)
    return run_job(config, beam_args, on_progress)


def _config(config_class: type, paths: "_Paths", options: dict[str, Any]) -> Any:
    from headrace.engines.config_fields import flat_fields, from_flat

    known = [each.field.name for each in flat_fields(config_class)]
    for name in options:
        if name not in known:
            raise TypeError(f"{config_class.__name__} has no option {name}{nearest(name, known)}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return from_flat(config_class, {**paths._asdict(), **values})


class _Paths(NamedTuple):
    inputs: tuple[str, ...]
    output: str
    model: str


def _paths(inputs: Inputs, output: Path, model: Path) -> _Paths:
    listed = (inputs,) if isinstance(inputs, str | os.PathLike) else inputs
    return _Paths(tuple(os.fspath(path) for path in listed), os.fspath(output), os.fspath(model))
