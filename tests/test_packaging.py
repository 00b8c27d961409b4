"""The wheel holds every subpackage, and the rooms are importable under one name only."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("audio", "engines", "serving", "jobs", "pipelines")


def test_every_subpackage_is_listed_in_pyproject():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("headrace", *path.parent.relative_to(ROOT).parts))
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert set(listed) == found


def test_every_folder_with_modules_is_a_package():
    for room in ROOMS:
        for module in (ROOT / room).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module


def test_type_checkers_find_every_room():
    for room in ROOMS:
        assert (ROOT / "tests/links/headrace" / room / "__init__.py").exists()
