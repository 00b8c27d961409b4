"""Rows of people's own pipelines through both engines: results, errors, windows, types, no lost row."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue

from headrace.engines import ModelError
from headrace.pipelines import FailedRow, Generate, GeneratedRow, InputError, Transcribe, TranscribedRow

SMALL: dict[str, Any] = {"max_tokens": 4, "max_num_seqs": 8, "max_model_len": 128, "dtype": "float32"}
SMALL |= {"ignore_eos": True, "deterministic": True}
OPTIONS = ["--runner=FnApiRunner", "--direct_running_mode=multi_threading", "--direct_num_workers=2"]


class Question(NamedTuple):
    key: int
    prompt: str | None


def pipeline() -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(OPTIONS))


def collected(check):
    """A matcher that sorts nothing and hands the whole collection to `check`."""

    def match(found: Iterable[Any]) -> None:
        check(list(found))

    return match


def test_every_row_is_in_one_of_the_two_collections_with_its_own_columns(tiny_llm: str):
    rows = [{"key": n, "prompt": f"prompt {n % 20}"} for n in range(60)]
    rows[7] = {"key": 7, "prompt": None}
    rows[8] = {"key": 8, "prompt": "long " * 100}
    rows[9] = {"key": 9}

    def check_results(found: list[GeneratedRow]) -> None:
        assert sorted(each.row["key"] for each in found) == sorted(set(range(60)) - {7, 8, 9})
        texts = {}
        for each in found:
            assert texts.setdefault(each.row["prompt"], each.text) == each.text
            assert (each.completion_tokens, each.finish_reason, each.seed) == (4, "length", None)

    def check_errors(found: list[FailedRow]) -> None:
        kinds = {each.row["key"]: each.kind for each in found}
        assert kinds == {7: "missing_value", 8: "prompt_too_long", 9: "missing_value"}
        assert all(each.message for each in found)

    with pipeline() as p:
        outcome = p | beam.Create(rows) | Generate(tiny_llm, **SMALL)
        assert outcome.results.element_type is GeneratedRow
        assert outcome.errors.element_type is FailedRow
        assert_that(outcome.results, collected(check_results), label="results")
        assert_that(outcome.errors, collected(check_errors), label="errors")


def test_named_tuples_keep_their_window_and_draw_by_their_id(tiny_llm: str):
    rows = [Question(n, f"prompt {n}") for n in range(12)]
    sampled = {**SMALL, "temperature": 1.0, "id_column": "key"}

    def run(order: list[Question]) -> dict[int, str]:
        texts: dict[int, str] = {}

        def check(found: list[tuple[int, list[GeneratedRow]]]) -> None:
            assert sorted(key for key, _ in found) == [0, 1]
            for parity, group in found:
                assert len(group) == 6
                assert {each.row.key % 2 for each in group} == {parity}
            texts.update({each.row.key: each.text for _, group in found for each in group})
            assert len({each.seed for _, group in found for each in group}) == 12

        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as p:
            results = (
                p
                | beam.Create(order)
                | beam.Map(lambda row: TimestampedValue(row, 60 * (row.key % 2)))
                | beam.WindowInto(FixedWindows(60))
                | Generate(tiny_llm, **sampled)
            ).results
            grouped = (
                results
                | beam.Map(lambda each, w=beam.DoFn.WindowParam: (int(w.start) // 60, each))
                | beam.GroupByKey()
                | "Global" >> beam.WindowInto(GlobalWindows())
            )
            assert_that(grouped | beam.Map(lambda pair: (pair[0], list(pair[1]))), collected(check))
        return texts

    run(rows)
    run(rows[::-1])


@pytest.mark.slow
def test_recordings_of_rows_are_transcribed(shared_data: Path):
    clip = shared_data / "speech/DeepSpeech__LDC93S1.wav"
    rows = [
        {"name": "path", "audio": str(clip)},
        {"name": "bytes", "audio": clip.read_bytes()},
        {"name": "gone", "audio": str(clip) + ".not"},
    ]

    def check_results(found: list[TranscribedRow]) -> None:
        assert sorted(each.row["name"] for each in found) == ["bytes", "path"]
        assert all("suit in greasy" in each.text for each in found)
        assert all(each.segments[0].end_s == pytest.approx(2.92, abs=0.01) for each in found)

    def check_errors(found: list[FailedRow]) -> None:
        assert [(each.row["name"], each.kind) for each in found] == [("gone", "not_found")]

    with pipeline() as p:
        transcribe = Transcribe("demo:whisper-tiny.en", dtype="float32", batch_size=4)
        outcome = p | beam.Create(rows) | transcribe.with_resource_hints(min_ram="2GB")
        assert_that(outcome.results, collected(check_results), label="results")
        assert_that(outcome.errors, collected(check_errors), label="errors")


def test_options_are_checked_when_the_transform_is_made(tiny_llm: str):
    with pytest.raises(InputError, match="no option max_token:"):
        Generate(tiny_llm, max_token=3)
    with pytest.raises(InputError, match="output is an option of runs over files"):
        Generate(tiny_llm, output="out")
    with pytest.raises(InputError, match="temperature"):
        Generate(tiny_llm, temperature=-1.0)
    with pytest.raises(ModelError, match="nowhere"):
        Generate("./nowhere")
    with pytest.raises(InputError, match="stride"):
        Transcribe("demo:whisper-tiny.en", chunk_length_s=10.0, stride_length_s=6.0)
