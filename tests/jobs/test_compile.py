"""`headrace compile`: artifacts for jobs, with the job's own options."""

import json

import pyarrow.parquet as pq
import pytest

from headrace.jobs.compile import main
from headrace.jobs.errors import UsageError
from headrace.jobs.run import run_generate

OPTIONS = {"dtype": "float32", "max_num_seqs": 8, "max_model_len": 128, "max_num_batched_tokens": 64}


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "the first argument is the model"),
        (["--output", "x"], "the first argument is the model|unrecognized"),
        (["MODEL", "more", "--output", "x"], "more is one argument too many"),
        (["MODEL", "--output", "x", "--dtype", "int3"], "invalid choice: 'int3'"),
    ],
)
def test_bad_arguments_are_told_before_a_model_is_loaded(tiny_llm, argv, told):
    with pytest.raises(UsageError, match=told):
        main([str(tiny_llm) if each == "MODEL" else each for each in argv])


def test_a_directory_that_holds_something_is_refused(tiny_llm, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is there already: name a new directory"):
        main([str(tiny_llm), "--output", str(tmp_path)])


@pytest.mark.slow
def test_a_job_starts_from_an_artifact_and_goes_on_with_it(tiny_llm, tmp_path, caplog):
    argv = [part for name, value in OPTIONS.items() for part in ("--" + name.replace("_", "-"), str(value))]
    artifact = tmp_path / "artifact"
    assert main([str(tiny_llm), "--output", str(artifact), *argv]) == 0
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "cd", "ef")))
    texts = {}
    for model in (str(tiny_llm), str(artifact)):
        output = tmp_path / f"out-{len(texts)}"
        options = {"inputs": str(prompts), "output": str(output), "model": model, "max_tokens": 8, **OPTIONS}
        assert run_generate(**options, supervise=False).rows == 3
        texts[model] = pq.read_table(output).column("text").to_pylist()
        assert run_generate(**options, supervise=False).parts_reused == 1
    assert texts[str(tiny_llm)] == texts[str(artifact)]
    assert not [record for record in caplog.records if "compiled again" in record.getMessage()]
