"""Both engines behind Beam's RunInference: a prediction for each example, whatever its fault."""

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.ml.inference.base import PredictionResult, RunInference
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that

from headrace.pipelines import FailedRow, GeneratedRow, TranscribedRow
from headrace.pipelines.model_handler import GenerateModelHandler, TranscribeModelHandler

SMALL: dict[str, Any] = {"max_tokens": 4, "max_num_seqs": 8, "max_model_len": 128, "dtype": "float32"}


def test_a_bad_prompt_fails_alone_and_not_its_batch(tiny_llm: str):
    examples: list[Any] = ["one", {"prompt": "two"}, "", "long " * 100, {"prompt": None}]

    def check(found: list[PredictionResult]) -> None:
        kinds = [each.inference.kind if isinstance(each.inference, FailedRow) else "" for each in found]
        assert sorted(kinds) == ["", "", "missing_value", "prompt_empty", "prompt_too_long"]
        good = [each for each in found if isinstance(each.inference, GeneratedRow)]
        assert sorted(map(str, (each.example for each in good))) == ["one", "{'prompt': 'two'}"]

    handler = GenerateModelHandler(tiny_llm, batch_size=16, resource_hints={"min_ram": "1GB"}, **SMALL)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as p:
        assert_that(p | beam.Create(examples) | RunInference(handler), lambda found: check(list(found)))


@pytest.mark.slow
def test_recordings_may_be_bytes_or_paths(shared_data: Path):
    clip = shared_data / "speech/DeepSpeech__LDC93S1.wav"
    handler = TranscribeModelHandler("demo:whisper-tiny.en", dtype="float32", batch_size=4)
    engine = handler.load_model()
    found = list(handler.run_inference([str(clip), clip.read_bytes(), b"no audio"], engine))
    engine.close()
    assert [type(each.inference) for each in found] == [TranscribedRow, TranscribedRow, FailedRow]
    assert "suit in greasy" in found[1].inference.text


def test_arguments_of_a_call_are_refused(tiny_llm: str):
    with pytest.raises(ValueError, match="max_tokens"):
        GenerateModelHandler(tiny_llm, **SMALL).validate_inference_args({"max_tokens": 3})
