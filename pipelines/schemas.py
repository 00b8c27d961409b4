"""Arrow schemas of the results: exactly these columns, whatever the rows hold."""

from collections.abc import Sequence

import pyarrow as pa

from headrace.pipelines.errors import InputError

_KEY = [
    pa.field("id", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("row", pa.int64(), nullable=False),
]

_QUALITY = [
    pa.field("quality_flags", pa.list_(pa.string()), nullable=False),
    pa.field("error", pa.string()),
    pa.field("queue_s", pa.float64()),
]

_WORD = pa.struct(
    {"word": pa.string(), "start_s": pa.float64(), "end_s": pa.float64(), "probability": pa.float64()}
)

_SEGMENT = pa.struct(
    {
        "start_s": pa.float64(),
        "end_s": pa.float64(),
        "text": pa.string(),
        "avg_logprob": pa.float64(),
        "no_speech_prob": pa.float64(),
        "compression_ratio": pa.float64(),
        "temperature": pa.float64(),
        "words": pa.list_(_WORD),
    }
)

_GENERATE = [
    *_KEY,
    pa.field("prompt", pa.string()),
    pa.field("text", pa.string()),
    pa.field("finish_reason", pa.string(), nullable=False),
    pa.field("prompt_tokens", pa.int64()),
    pa.field("cached_tokens", pa.int64()),
    pa.field("completion_tokens", pa.int64()),
    pa.field("seed", pa.int64()),
    *_QUALITY,
    pa.field("ttft_s", pa.float64()),
    pa.field("latency_s", pa.float64()),
]

_TRANSCRIBE = [
    *_KEY,
    pa.field("text", pa.string()),
    pa.field("language", pa.string()),
    pa.field("language_probability", pa.float64()),
    pa.field("duration_s", pa.float64()),
    pa.field("segments", pa.list_(_SEGMENT)),
    pa.field("num_tokens", pa.int64()),
    pa.field("vad_dropped_s", pa.float64()),
    *_QUALITY,
    pa.field("latency_s", pa.float64()),
]

_LOGPROB = pa.struct(
    {"token_id": pa.int32(), "token": pa.string(), "logprob": pa.float32(), "rank": pa.int32()}
)

_GENERATE_EXTRA = {
    "texts": pa.list_(pa.string()),
    "token_ids": pa.list_(pa.int32()),
    "cumulative_logprob": pa.float64(),
    "logprobs": pa.list_(pa.list_(_LOGPROB)),
    "prompt_logprobs": pa.list_(pa.list_(_LOGPROB)),
}
_TRANSCRIBE_EXTRA = {
    "channel": pa.int64(),
    "translation": pa.string(),
    "translation_segments": pa.list_(_SEGMENT),
    "token_ids": pa.list_(pa.list_(pa.int32())),
}


def generate_schema(with_columns: Sequence[str] = (), kept: pa.Schema | None = None) -> pa.Schema:
    """Columns of `generate`, then those of `with_columns`, then the kept ones of the input."""
    return _schema(_GENERATE, [pa.field(name, _GENERATE_EXTRA[name]) for name in with_columns], kept)


def transcribe_schema(with_columns: Sequence[str] = (), kept: pa.Schema | None = None) -> pa.Schema:
    """Columns of `transcribe`, then those of `with_columns`, then the kept ones of the input."""
    return _schema(_TRANSCRIBE, [pa.field(name, _TRANSCRIBE_EXTRA[name]) for name in with_columns], kept)


def kept_name(name: str, schema: pa.Schema) -> str:
    """Name in the results of a kept input column: input_NAME where a column of ours has its name."""
    return f"input_{name}" if name in schema.names else name


def _schema(columns: list[pa.Field], extra: list[pa.Field], kept: pa.Schema | None) -> pa.Schema:
    schema = pa.schema([*columns, *extra])
    for field in kept or ():
        name = kept_name(field.name, pa.schema([*columns, *extra]))
        if name in schema.names:
            raise InputError(f"two kept columns would both be {name!r} in the results: keep one of them")
        schema = schema.append(pa.field(name, field.type))
    return schema
