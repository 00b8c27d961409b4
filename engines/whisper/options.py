"""What a request asks for, with every gap filled: call, then row, config, checkpoint, detection."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.audio import MAX_CHUNK_S
from headrace.engines.whisper.config import (
    Mode,
    Stride,
    Timestamps,
    TranscribeOptions,
    WhisperConfig,
    timestamps_mode,
)
from headrace.engines.whisper.languages import language_code
from headrace.engines.whisper.tokenizer import SpecialTokens


class ResolvedOptions(NamedTuple):
    """Options without gaps."""

    language: str | None
    """Code; None: to be detected, or an English-only model."""
    task: str
    timestamps: Timestamps
    chunk_length_s: float
    stride_length_s: Stride
    mode: Mode
    vad: bool
    initial_prompt: str
    hotwords: str
    condition_on_previous_text: bool
    channel: int | None
    """None: the mean of all."""


def default_options(config: WhisperConfig, generation_config: Mapping[str, Any]) -> TranscribeOptions:
    """What holds where neither the call nor the row says anything: the config, then the checkpoint."""
    checkpoint = TranscribeOptions(
        language=generation_config.get("language"),
        task=generation_config.get("task"),
        return_timestamps=generation_config.get("return_timestamps"),
    )
    return config.options().over(checkpoint)


def resolve(options: TranscribeOptions, special: SpecialTokens) -> ResolvedOptions:
    """The options as the decoder needs them.

    Raises:
      ValueError: a language, task or prompt that the model does not have, or options that exclude each other.
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
        if task != "transcribe":
            raise ValueError(f"task is {task!r}, the model knows English only: take a multilingual one")
        language = "en"
    assert options.chunk_length_s is not None, "the defaults hold a chunk length"
    _check_together(options)
    if (options.initial_prompt or options.hotwords) and special.prev is None:
        raise ValueError("initial_prompt or hotwords is given, but the vocabulary has no <|startofprev|>")
    return ResolvedOptions(
        language=language,
        task=task,
        timestamps=timestamps_mode(options.return_timestamps),
        chunk_length_s=options.chunk_length_s,
        stride_length_s=options.stride_length_s,
        mode=options.mode or "chunked",
        vad=bool(options.vad),
        initial_prompt=options.initial_prompt or "",
        hotwords=options.hotwords or "",
        condition_on_previous_text=bool(options.condition_on_previous_text),
        channel=options.channel,
    )


def _check_together(options: TranscribeOptions) -> None:
    """Refuses options that the mode cannot honour."""
    if options.mode == "sequential":
        if options.vad:
            raise ValueError("vad is on and mode is 'sequential', which seeks by itself: take 'chunked'")
        if options.stride_length_s is not None or options.chunk_length_s != MAX_CHUNK_S:
            raise ValueError(
                "chunk_length_s or stride_length_s is given and mode is 'sequential', whose windows are 30 s "
                "and begin where the last text ended: leave them out, or take mode 'chunked'"
            )
    elif options.condition_on_previous_text:
        raise ValueError(
            "condition_on_previous_text is on and mode is 'chunked', whose windows are decoded side by side: "
            "take mode 'sequential'"
        )
    if options.vad and options.stride_length_s is not None:
        raise ValueError("stride_length_s is given and vad is on, whose windows end in pauses: leave it out")
