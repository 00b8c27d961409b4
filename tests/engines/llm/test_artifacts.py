"""A start from an artifact computes the same and compiles nothing; what was touched is refused."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from headrace.engines import native, program_store
from headrace.engines.checkpoints import Checkpoint, open_checkpoint, resolve_model
from headrace.engines.checkpoints.artifact import PROGRAMS, WEIGHTS, MappedWeights, write_weights
from headrace.engines.checkpoints.contents import Contents
from headrace.engines.errors import ConfigError, ModelError
from headrace.engines.llm import LLM, SamplingParams
from headrace.engines.llm.artifacts import read_decoder
from headrace.engines.llm.assembly import choose_precision, load_weights
from headrace.engines.llm.families import read_model_config
from headrace.engines.prepared import named_arrays, ready_programs
from tests.engines.llm.conftest import tiny_config

PARAMS = SamplingParams(max_tokens=6)
TEMPLATE = "{% for message in messages %}[{{ message.content }}]{% endfor %}"


@pytest.fixture(scope="module")
def artifact(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a deterministic float32 engine saved, which had a chat template of its own."""
    directory = tmp_path_factory.mktemp("artifact") / "tiny"
    with LLM(str(tiny_model), tiny_config(deterministic=True), chat_template=TEMPLATE) as llm:
        llm.save_artifact(directory)
    return directory


@pytest.fixture
def touched(artifact: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(artifact, tmp_path / "copy"))


def tokens_of(llm: LLM) -> list[int]:
    return list(llm.generate("abcdef", PARAMS).outputs[0].token_ids)


def test_a_start_from_an_artifact_compiles_nothing_and_makes_the_same_texts(artifact, tiny_llm, caplog):
    with LLM.load_artifact(artifact) as llm:
        assert llm.config.scheduler == tiny_llm.config.scheduler
        assert tokens_of(llm) == tokens_of(tiny_llm)
        llm.precompile()
        counts = llm.metrics()
    assert (counts["compiles"], counts["programs_read"]) == (0, 3)
    assert caplog.records == []


def test_the_tokenizer_and_its_template_are_saved(artifact, tiny_llm):
    with LLM(str(artifact)) as llm:
        assert llm.count_tokens([{"role": "user", "content": "xyz"}]) == 5
        assert llm.processor.encode("a b") == tiny_llm.processor.encode("a b")
        assert llm.processor.chat_template == TEMPLATE


@pytest.mark.parametrize("part", ["jaxlib", "jax"])
def test_another_version_is_one_warning_and_programs_are_compiled_again(
    artifact, tiny_llm, monkeypatch, caplog, tmp_path, part
):
    own = program_store.machine_parts()
    monkeypatch.setattr(program_store, "machine_parts", lambda: {**own, part: "9.9.9"})
    config = tiny_config(deterministic=True, cache_dir=str(tmp_path / "kept"))
    with LLM(str(artifact), config) as llm:
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"compiled again: {part} (theirs: {own[part]}, here: 9.9.9)" in caplog.text
        if part == "jaxlib":
            assert tokens_of(llm) == tokens_of(tiny_llm)
            assert llm.metrics()["compiles"] > 0


def test_other_options_are_one_warning_that_names_the_parts(artifact, caplog):
    with LLM(str(artifact), tiny_config(deterministic=True, max_num_seqs=4)):
        (record,) = caplog.records
        assert "compiled again: shapes" in record.getMessage()


def test_what_no_program_is_traced_from_may_differ(artifact, caplog):
    config = tiny_config(deterministic=True, policy="priority", seed=7, overlong="truncate-left")
    with LLM(str(artifact), config) as llm:
        tokens_of(llm)
        assert llm.metrics()["compiles"] == 0
    assert caplog.records == []


def test_a_dtype_that_the_weights_do_not_have_is_refused_with_the_remedy(artifact):
    config = tiny_config(deterministic=True, dtype="bfloat16")
    with pytest.raises(ModelError, match=r"other options \(dtype float32.*compile the model again"):
        LLM(str(artifact), config)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json"])
def test_a_file_that_was_changed_is_refused(touched, name):
    content = bytearray((touched / name).read_bytes())
    content[-3] ^= 1
    (touched / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"{name} of the artifact .* not the file that was saved.*sha256"):
        LLM(str(touched))


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer_config.json"])
def test_a_file_that_was_cut_short_is_refused(touched, name):
    (touched / name).write_bytes((touched / name).read_bytes()[:-1])
    with pytest.raises(ModelError, match=rf"{name} of the artifact .* is cut short.*copy it again"):
        LLM(str(touched))


def test_a_file_that_is_not_there_and_a_record_that_is_none_are_refused(touched):
    (touched / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"lacks tokenizer\.json"):
        LLM(str(touched))
    (touched / "artifact.json").write_text('{"format_version": 2}')
    with pytest.raises(ModelError, match="format version 2, wanted 1"):
        LLM(str(touched))
    (touched / "artifact.json").write_text('{"format_version": 1, "kind": "text"}')
    with pytest.raises(ModelError, match="is damaged: ArtifactRecord needs model"):
        LLM(str(touched))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "a damaged compiled program is compiled again",
        ),
        (lambda path: path.chmod(0o666), "that others may write is not used"),
    ],
    ids=["cut", "writable"],
)
def test_programs_that_are_damaged_or_not_to_be_trusted_are_not_run(touched, tmp_path, caplog, damage, told):
    for program in (touched / PROGRAMS).iterdir():
        damage(program)
    config = tiny_config(deterministic=True, cache_dir=str(tmp_path / "kept"))
    with LLM(str(touched), config) as llm:
        llm.precompile([64])
        counts = llm.metrics()
    assert (counts["compiles"], counts["programs_read"]) == (1, 0)
    assert told in caplog.text


def test_a_models_identity_is_that_of_its_artifact_wherever_it_lies(artifact, touched):
    assert resolve_model(str(artifact)).format == "artifact"
    assert resolve_model(str(artifact)).fingerprint == resolve_model(str(touched)).fingerprint


def test_no_program_is_run_that_was_fetched_with_a_model(artifact, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert ready_programs(open_checkpoint(str(artifact))) is not None
    assert ready_programs(open_checkpoint(f"local://{artifact}")) is None


def test_an_artifact_is_written_whole_or_not_at_all(artifact, tiny_llm, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="is there already"):
        tiny_llm.save_artifact(artifact)
    monkeypatch.setattr("headrace.engines.llm.runner.write_weights", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tiny_llm.save_artifact(tmp_path / "broken")
    assert list(tmp_path.iterdir()) == []


def test_weights_of_an_artifact_have_no_names_to_update_them_by(artifact):
    with LLM(str(artifact)) as llm, pytest.raises(ModelError, match="give a whole checkpoint"):
        llm.update_weights({"model.norm.weight": np.ones(16, np.float32)})


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float32"},
        {"dtype": "bfloat16", "quantization": "int8"},
        pytest.param(
            {"dtype": "float32", "quantization": "int16"},
            marks=pytest.mark.skipif(not native.is_available(native.LINEAR), reason="kernels are not built"),
        ),
    ],
)
def test_weights_come_back_as_they_were_and_are_not_copied(native_model, tmp_path, options):
    config, checkpoint = tiny_config(**options), open_checkpoint(str(native_model))
    model = read_model_config(checkpoint.config)
    decoder = load_weights(checkpoint, model, config)
    saved = named_arrays(nnx.state(decoder))
    write_weights(tmp_path, saved)
    mapped = MappedWeights(tmp_path / WEIGHTS)
    contents = Contents(
        config=checkpoint.config,
        generation_config={},
        preprocessor_config={},
        tensors=mapped,
        make_tokenizer=checkpoint.tokenizer,
    )
    precision = choose_precision(config)
    read = nnx.state(read_decoder(Checkpoint(checkpoint.model, contents), model, precision, config.parallel))
    back = named_arrays(read)
    assert back.keys() == saved.keys()
    for name, array in saved.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    (embedding,) = (leaf for path, leaf in jax.tree.leaves_with_path(read) if "embedding" in str(path))
    assert embedding.unsafe_buffer_pointer() == mapped.read("embedding").ctypes.data
