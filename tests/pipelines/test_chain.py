"""Chains: stages that feed each other in one pipeline, each committed and resumable; faults of recipes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from headrace.pipelines import InputError, OutputError
from headrace.pipelines.chain import run_chain
from headrace.pipelines.compaction import compact
from headrace.pipelines.recipe import Recipe, read_recipe

MakePrompts = Callable[[int], Path]

SMALL = "max_tokens: 6, max_num_seqs: 8, max_model_len: 128, dtype: float32, ignore_eos: true"
SMALL += ", deterministic: true"
FILES = "rows_per_part: 5, keep_columns: [n]"


def make_recipe(model: str, source: Path, output: Path, *, template: str = "again {text}") -> Recipe:
    return read_recipe(f"""
output: {output}
stages:
  - {{name: first, job: generate, inputs: [{source}], model: {model}, {FILES}, {SMALL}}}
  - {{name: second, job: generate, model: {model}, template: "{template}", keep_columns: [text, n], {SMALL}}}
  - {{name: third, job: generate, rows_of: second, model: {model}, prompt_column: text, {SMALL}}}
""")


def read_rows(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output).to_table().sort_by([("source", "ascending"), ("row", "ascending")]).to_pylist()


@pytest.mark.slow
def test_every_row_goes_through_every_stage_and_keeps_its_place(
    tiny_llm: str, make_prompts: MakePrompts, tmp_path: Path
):
    source = make_prompts(12)
    lines = source.read_text().splitlines()
    lines[3] = json.dumps({"prompt": None, "n": 3})
    source.write_text("\n".join(lines))
    output = tmp_path / "out"
    recipe = make_recipe(tiny_llm, source, output)
    summaries = run_chain(recipe)
    assert {name: (each.rows, each.rows_failed) for name, each in summaries.items()} == {
        "first": (12, 1),
        "second": (12, 1),
        "third": (12, 1),
    }
    assert [each.model_loads for each in summaries.values()] == [1, 1, 1]
    first, second, third = (read_rows(output / name) for name in ("first", "second", "third"))
    for rows in (first, second, third):
        assert [(row["id"], row["row"]) for row in rows] == [(f"prompts.jsonl#{n}", n) for n in range(12)]
    for one, two, three in zip(first, second, third, strict=True):
        assert two["n"] == one["n"] == one["row"]
        assert two["input_text"] == one["text"]
        if one["row"] == 3:
            assert (two["text"], three["text"]) == (None, None)
            assert "failed in the stage before" in two["error"]
        else:
            assert two["prompt"] == f"again {one['text']}"
            assert three["prompt"] == two["text"]

    parts = {path: path.stat().st_mtime_ns for path in output.glob("*/part-*")}
    assert len(parts) == 9
    for path in list(output.glob("third/part-*"))[:1] + list(output.glob("second/part-00001-*")):
        path.unlink()
    again = run_chain(recipe)
    assert again["first"].rows_run == 0
    assert again["second"].rows_run == 5
    assert 0 < again["third"].rows_run <= 5
    after = {path: path.stat().st_mtime_ns for path in output.glob("*/part-*")}
    assert after.keys() == parts.keys()
    assert sum(after[path] == parts[path] for path in parts) == 7
    assert read_rows(output / "third") == [
        {**row, **{name: now[name] for name in ("queue_s", "ttft_s", "latency_s", "cached_tokens")}}
        for row, now in zip(third, read_rows(output / "third"), strict=True)
    ]

    lines.append(json.dumps({"prompt": "late", "n": 12}))
    (source.parent / "zz.jsonl").write_text(lines[-1])
    more = make_recipe(tiny_llm, Path(f"{source.parent}/*.jsonl"), output)
    grown = run_chain(more)
    assert [(each.rows, each.rows_run) for each in grown.values()] == [(13, 1)] * 3

    with pytest.raises(OutputError, match="template"):
        run_chain(make_recipe(tiny_llm, Path(f"{source.parent}/*.jsonl"), output, template="more {text}"))
    compact(str(output / "first"))
    assert [each.rows_run for each in run_chain(more).values()] == [0, 0, 0]
    next(iter(output.glob("second/part-*"))).unlink()
    with pytest.raises(OutputError, match="was compacted"):
        run_chain(more)


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ("[]", "at least one stage"),
        ("[{job: generate}]", "with a `name`"),
        ("[{name: a/b, job: generate}]", "'a/b'"),
        ("[{name: a, job: speak}]", "'speak'"),
        ("[{name: a, job: generate, model: m}]", "no inputs given"),
        ("[{name: a, job: generate, inputs: x}]", "no model given"),
        ("[{name: a, job: generate, model: m, inputs: x, max_token: 3}]", "no option max_token"),
        ("[{name: a, job: generate, model: m, inputs: x, max_tokens: 0}]", "stage a: max_tokens"),
        ("[{name: a, job: generate, rows_of: b, model: m}]", "'b'"),
        (
            "[{name: a, job: generate, model: m, inputs: x}, {name: b, job: generate, model: m, inputs: y}]",
            "leave inputs out",
        ),
        (
            "[{name: a, job: generate, model: m, inputs: x}, {name: b, job: transcribe, model: m}]",
            "no recordings",
        ),
    ],
)
def test_a_recipe_that_is_wrong_is_refused_with_the_stage_and_the_reason(stages: str, told: str):
    with pytest.raises(InputError, match=told):
        read_recipe(f"output: out\nstages: {stages}")


def test_what_is_no_recipe_is_refused():
    for text in ("a: [", "output: out", "- a", "output: 3\nstages: [{}]"):
        with pytest.raises(InputError, match="recipe"):
            read_recipe(text)
