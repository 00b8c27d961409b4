"""The results have exactly the columns that were promised."""

import pyarrow as pa
import pytest

from headrace.pipelines.config import TranscribeConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.schemas import generate_schema, kept_name, transcribe_schema
from headrace.pipelines.transcribe import TranscribeWork

GENERATE = """id source row prompt text finish_reason prompt_tokens cached_tokens completion_tokens seed
    quality_flags error queue_s ttft_s latency_s"""
TRANSCRIBE = """id source row text language language_probability duration_s segments num_tokens vad_dropped_s
    quality_flags error queue_s latency_s"""
SEGMENT = "start_s end_s text avg_logprob no_speech_prob compression_ratio temperature words"
WORD = "word start_s end_s probability"


def test_generate_has_its_columns_and_no_others():
    assert generate_schema().names == GENERATE.split()


def test_transcribe_has_its_columns_and_no_others():
    schema = transcribe_schema()
    assert schema.names == TRANSCRIBE.split()
    segment = schema.field("segments").type.value_type
    assert [field.name for field in segment] == SEGMENT.split()
    assert [field.name for field in segment.field("words").type.value_type] == WORD.split()


def test_further_columns_follow_and_kept_ones_come_last_under_free_names():
    kept = pa.schema({"text": pa.string(), "n": pa.int64()})
    schema = transcribe_schema(("token_ids",), kept)
    assert schema.names[-3:] == ["token_ids", "input_text", "n"]
    assert schema.field("token_ids").type == pa.list_(pa.list_(pa.int32()))
    assert schema.field("n").type == pa.int64()
    assert kept_name("text", transcribe_schema()) == "input_text"
    with_both = generate_schema(("token_ids", "cumulative_logprob"))
    assert with_both.names[-2:] == ["token_ids", "cumulative_logprob"]


def test_two_kept_columns_of_one_name_are_refused():
    kept = pa.schema({"id": pa.string(), "input_id": pa.int64()})
    with pytest.raises(InputError, match="input_id"):
        _ = generate_schema((), kept)


def test_a_translation_beside_the_text_has_columns_of_its_own():
    def columns(**options: str) -> list[str]:
        config = TranscribeConfig(inputs=("x",), output="y", model="m", **options)
        return TranscribeWork(config=config).schema.names

    both = ["translation", "translation_segments"]
    assert columns(task="both") == [*columns(), *both]
    assert columns(task_column="task") == [*columns(), *both]
    assert columns(task="translate") == columns()
    assert columns(task="both", channels="split") == [*columns(), "channel", *both]
