"""What a model spec means."""

from pathlib import Path

import pytest

from headrace.engines.checkpoints.spec import (
    DEMO_MODELS,
    HubSpec,
    PathSpec,
    RemoteSpec,
    WheelPart,
    WheelSpec,
    parse_spec,
)
from headrace.engines.errors import ModelError


def test_owner_and_name_is_a_hub_id():
    assert parse_spec("openai/whisper-tiny.en") == HubSpec(repo_id="openai/whisper-tiny.en")


def test_existing_path_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "openai" / "whisper-tiny.en").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_spec("openai/whisper-tiny.en") == PathSpec(path=Path("openai/whisper-tiny.en"))


def test_file_url_is_a_path():
    assert parse_spec("file:///a/b%20c") == PathSpec(path=Path("/a/b c"))


def test_other_protocols_are_remote():
    assert parse_spec("gs://bucket/model/") == RemoteSpec(url="gs://bucket/model")


def test_wheel_parts_keep_their_order_and_digests():
    spec = parse_spec(f"pypi:a-b==1.0/x/y#sha256={'A' * 64}+pypi:c==2.0.post1/z.gguf+d==3/c++/f")
    assert spec == WheelSpec(
        parts=(
            WheelPart(project="a-b", version="1.0", path="x/y", sha256="a" * 64),
            WheelPart(project="c", version="2.0.post1", path="z.gguf", sha256=None),
            WheelPart(project="d", version="3", path="c++/f", sha256=None),
        )
    )


@pytest.mark.parametrize("name", sorted(DEMO_MODELS))
def test_demo_names_are_wheels_with_pinned_digests(name: str):
    spec = parse_spec(name)
    assert isinstance(spec, WheelSpec)
    assert all(part.sha256 for part in spec.parts)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "empty"),
        ("demo:nothing", "demo:smollm2-135m"),
        ("pypi:a", "pypi:PROJECT==VERSION/PATH"),
        ("pypi:a>=1/x", "pypi:PROJECT==VERSION/PATH"),
        ("pypi:a==1/x#sha256=12", "64 hex digits"),
        ("pypi:a==1/../x", "inside the wheel"),
        ("pypi:a==1//x", "inside the wheel"),
        ("pypi:a==1/x\\y", "inside the wheel"),
        ("no-such-model", "neither a file or directory here nor a hub id"),
        ("some/folder/model", "neither a file or directory here nor a hub id"),
        ("models/nothing.gguf", "neither a file or directory"),
    ],
)
def test_malformed_spec_is_one_line_that_says_what_was_wanted(spec: str, words: str):
    with pytest.raises(ModelError) as caught:
        parse_spec(spec)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
