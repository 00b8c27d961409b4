"""What `headrace plan` tells of a run that is not run."""

import json
from pathlib import Path

import pytest

from headrace.engines.checkpoints import open_checkpoint
from headrace.jobs.cli import main
from headrace.pipelines.needs import num_weights

MODEL = "demo:smollm2-135m"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Count from {n} on."}) + "\n" for n in range(40)))
    return path


def arguments(prompts: Path, *more: str) -> list[str]:
    few = ["--max-tokens", "4", "--max-model-len", "64", "--max-num-seqs", "8", "--rows-per-part", "15"]
    output = str(prompts.parent / "out")
    return ["plan", "generate", str(prompts), "--output", output, "--model", MODEL, *few, *more]


def test_a_plan_names_parts_and_memory_and_writes_nothing(prompts: Path, capsys: pytest.CaptureFixture[str]):
    assert main(arguments(prompts)) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["shards"] == "1, of which 1 are tables"
    assert lines["rows"] == "40"
    assert lines["parts"] == "3 of 10 to 15 rows"
    assert lines["weights"].startswith("256 MiB in bfloat16")
    assert "pages of 32 tokens" in lines["KV"]
    assert "max_num_seqs 8" in lines["engine"]
    assert "devices" not in lines
    assert not (prompts.parent / "out").exists()


def test_a_draft_model_is_counted(prompts: Path, capsys: pytest.CaptureFixture[str]):
    pages = ["--num-pages", "20"]
    assert main(arguments(prompts, *pages)) == 0
    alone = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    draft = ["--speculative-method", "draft_model", "--speculative-model", MODEL]
    assert main(arguments(prompts, *pages, *draft)) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["weights"].startswith("513 MiB in bfloat16")
    assert _mib(lines["KV"]) == pytest.approx(2 * _mib(alone["KV"]), abs=1)


def _mib(line: str) -> int:
    return int(line.removeprefix("pages").split()[0])


@pytest.mark.slow
def test_a_sample_tells_time_and_cost(prompts: Path, capsys: pytest.CaptureFixture[str]):
    assert main(arguments(prompts, "--sample", "8", "--price-per-hour", "3.6")) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["sample"] == "8 rows, 0 failed"
    assert lines["a"].startswith("row       4.0 tokens (4.0 to 4.0)")
    assert "for 40 rows" in lines["time"]
    assert "cost" in lines
    assert not (prompts.parent / "out").exists()


def test_faults_of_a_plan_are_told_in_a_line(prompts: Path, capsys: pytest.CaptureFixture[str]):
    for more in (["--sample", "1"], ["--price-per-hour", "2"], ["--max-token", "3"]):
        assert main(arguments(prompts, *more)) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_weights_are_counted_from_the_configuration():
    assert num_weights(open_checkpoint(MODEL).config) == pytest.approx(134.5e6, rel=0.01)
    assert num_weights(open_checkpoint("demo:whisper-tiny.en").config) == pytest.approx(37.8e6, rel=0.02)


def test_a_plan_tells_what_each_of_several_devices_holds(prompts: Path, capsys: pytest.CaptureFixture[str]):
    spread = ["--tensor-parallel-size", "3", "--data-parallel-size", "1", "--num-pages", "100"]
    assert main(arguments(prompts, *spread)) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    # 100 pages of 32 tokens: 30 layers with a key and a value of 64 bfloat16 of the one kv head of a shard.
    assert lines["devices"] == "3, each with about 86 MiB of weights and 23 MiB of KV pages"
    assert main(arguments(prompts, "--tensor-parallel-size", "2")) == 2
    assert "9 query heads do not divide into 2 shards" in capsys.readouterr().err
    assert main(arguments(prompts, "--data-parallel-size", "5")) == 2
    assert "JAX sees 4" in capsys.readouterr().err
