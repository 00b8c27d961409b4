"""What a request asks for, with every gap filled: call, then row, config, checkpoint, detection."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.engines.whisper.config import (
    Stride,
    Timestamps,
    TranscribeOptions,
    WhisperConfig,
    timestamps_mode,
)
from headrace.engines.whisper.tokenizer import SpecialTokens, language_code


class ResolvedOptions(NamedTuple):
    """Options without gaps."""

    language: str | None
    """Code; None: to be detected, or an English-only model."""
    task: str
    timestamps: Timestamps
    chunk_length_s: float
    stride_length_s: Stride


def default_options(config: WhisperConfig, generation_config: Mapping[str, Any]) -> TranscribeOptions:
    """What holds where neither the call nor the row says anything: the config, then the checkpoint."""
    own = TranscribeOptions(
        language=config.language,
        task=config.task,
        return_timestamps=config.return_timestamps,
        chunk_length_s=config.chunk_length_s,
        stride_length_s=config.stride_length_s,
    )
    checkpoint = TranscribeOptions(
        language=generation_config.get("language"),
        task=generation_config.get("task"),
        return_timestamps=generation_config.get("return_timestamps"),
    )
    return own.over(checkpoint)


def resolve(options: TranscribeOptions, special: SpecialTokens) -> ResolvedOptions:
    """The options as the decoder needs them.

    Raises:
      ValueError: a language or task that the model does not have.
    """
    language = None if options.language is None else language_code(options.language)
    task = options.task or "transcribe"
    if special.is_multilingual:
        if language is not None and language not in special.languages:
            raise ValueError(f"language is {language!r}, which this model's vocabulary does not have")
    else:
        if language not in (None, "en"):
            raise ValueError(
                f"language is {language!r}, the model knows English only: take a multilingual one"
            )
        if task == "translate":
            raise ValueError("task is 'translate', the model knows English only: take a multilingual one")
        language = "en"
    assert options.chunk_length_s is not None, "the defaults hold a chunk length"
    return ResolvedOptions(
        language=language,
        task=task,
        timestamps=timestamps_mode(options.return_timestamps),
        chunk_length_s=options.chunk_length_s,
        stride_length_s=options.stride_length_s,
    )
