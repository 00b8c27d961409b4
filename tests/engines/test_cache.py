"""Where the cache is."""

from pathlib import Path

import pytest

from headrace.engines.cache import cache_home


def test_headrace_cache_comes_before_the_xdg_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("HEADRACE_CACHE", "/elsewhere")
    assert cache_home() == Path("/elsewhere")


def test_xdg_folder_comes_before_the_home_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_home() == Path("/somewhere/headrace")


def test_home_folder_is_the_last_resort(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_home() == Path("/home/someone/.cache/headrace")
