"""Encoder and decoder of a Whisper model, timed apart."""

import time
from collections.abc import Sequence

from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.roofline import Phase
from headrace.engines.whisper.config import ModelDims, WhisperConfig
from headrace.engines.whisper.costs import encoder_flops, token_flops
from headrace.engines.whisper.engine import WhisperEngine

# Prompt and one token: next to nothing of a decoder's work.
_SHORTEST = 4


def measure_phases(
    model: str, recordings: Sequence[str], *, dtype: str, batch_size: int | None
) -> list[Phase]:
    """The encoder, timed by texts of a token, and the decoder: what whole texts take more than that.

    Decoding of the files and the spectrogram count as the encoder's.
    """
    dims = ModelDims.of(open_checkpoint(model).config)
    short_s, windows, few = _seconds(model, recordings, dtype, batch_size, max_length=_SHORTEST)
    whole_s, _, tokens = _seconds(model, recordings, dtype, batch_size, max_length=None)
    num_tokens, mean = tokens - few, tokens / max(windows, 1)
    encoder = Phase("encoder", "windows", windows, windows * encoder_flops(dims), 0.0, short_s)
    flops = num_tokens * token_flops(dims, mean / 2)
    return [encoder, Phase("decoder", "tokens", num_tokens, flops, 0.0, whole_s - short_s)]


def _seconds(
    model: str, recordings: Sequence[str], dtype: str, batch_size: int | None, max_length: int | None
) -> tuple[float, int, int]:
    """Seconds, windows and decoded tokens of all recordings, once all programs are compiled."""
    config = WhisperConfig(
        dtype=dtype,
        batch_size=batch_size,
        max_length=max_length,
        temperatures=(0.0,),
        return_timestamps="segment",
    )
    with WhisperEngine(model, config) as engine:
        engine.transcribe(list(recordings[:1]))
        before, started_s = engine.metrics(), time.perf_counter()
        engine.transcribe(list(recordings))
        seconds, after = time.perf_counter() - started_s, engine.metrics()
    windows, tokens = (int(after[name] - before.get(name, 0)) for name in ("windows", "decoded_tokens"))
    return seconds, windows, tokens
