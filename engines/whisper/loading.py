"""A Whisper engine's parts from a checkpoint and a config."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from headrace.audio import VadError, silero_judge
from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ConfigError
from headrace.engines.precision import resolve_dtype
from headrace.engines.prepared import ready_programs
from headrace.engines.program_store import ReadyPrograms
from headrace.engines.whisper.alignment import alignment_heads
from headrace.engines.whisper.artifacts import read_model
from headrace.engines.whisper.beams import num_candidates
from headrace.engines.whisper.config import ModelDims, TranscribeOptions, WhisperConfig
from headrace.engines.whisper.languages import language_code
from headrace.engines.whisper.logit_rules import decoding_rules
from headrace.engines.whisper.model import WhisperModel
from headrace.engines.whisper.options import default_options, resolve
from headrace.engines.whisper.runner import Limits, Runner
from headrace.engines.whisper.slots import Decoding
from headrace.engines.whisper.tokenizer import SpecialTokens, WhisperTokenizer, special_tokens
from headrace.engines.whisper.weights import Weights, slot_bytes

logger = logging.getLogger(__name__)

MAX_SLOTS = 32
"""Slots of a small model; more do not make a CPU faster."""
FITTING_FRAMES = (512, 768)
"""Encoder contexts of windows up to 7 and 12 s: shorter ones end in loops, longer ones gain little."""
FEW_ROWS = 8
"""Rows of the smaller burst: a few recordings do not pay for all slots."""
SLOTS_BYTES = 4 << 30
"""Memory that the slots of a large model may take."""
MULTILINGUAL_VOCAB = 51_865
"""Smallest vocabulary of a multilingual model."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """What the engine is made of."""

    model: WhisperModel
    tokenizer: WhisperTokenizer
    decoding: Decoding
    defaults: TranscribeOptions
    config: WhisperConfig
    ready: ReadyPrograms | None

    def runner(self) -> Runner:
        """The slots and the compiled programs."""
        return Runner(
            self.model,
            self.decoding,
            encoder_batch=self.config.encoder_batch or _encoder_batch(),
            limits=Limits(
                max_tokens_per_s=self.config.max_tokens_per_s,
                best_of=self.config.best_of,
                length_penalty=self.config.length_penalty,
            ),
            ready=self.ready,
        )


class _Settings(NamedTuple):
    """What a checkpoint and a config say before any weight is read."""

    dims: ModelDims
    generation: Mapping[str, Any]
    tokenizer: WhisperTokenizer
    defaults: TranscribeOptions
    max_length: int


def check_model(checkpoint: Checkpoint, config: WhisperConfig) -> None:
    """Finds out, without reading weights, whether an engine could be made.

    Raises:
      ModelError: the checkpoint is not a Whisper model.
      ConfigError: the config does not fit the model.
    """
    _read_settings(checkpoint, config)


def load(checkpoint: Checkpoint, config: WhisperConfig) -> LoadedModel:
    """Reads weights, special tokens and defaults.

    Raises:
      ModelError: the checkpoint is not a whole Whisper model.
      ConfigError: the config does not fit the model.
    """
    dims, generation, tokenizer, defaults, max_length = _read_settings(checkpoint, config)
    _warn_of_translation(dims, defaults)
    dtype = resolve_dtype(config.dtype)
    num_slots = _num_slots(config, slot_bytes(dims, dtype, config.beam_size))
    decoding = Decoding(
        dims=dims,
        special=tokenizer.special,
        rules=decoding_rules(
            tokenizer.special,
            generation.get("suppress_tokens") or (),
            generation.get("begin_suppress_tokens") or (),
        ),
        num_slots=num_slots,
        slot_sizes=(num_slots,)
        if config.deterministic or num_slots <= FEW_ROWS or num_slots % 4
        else (FEW_ROWS, num_slots),
        beam_size=config.beam_size,
        num_candidates=num_candidates(config.beam_size, config.patience),
        contexts=_contexts(config, dims),
        max_length=max_length,
        burst=config.decode_burst,
        seed=config.seed,
        languages=_languages(config, tokenizer.special),
        alignment_heads=alignment_heads(generation.get("alignment_heads"), dims),
    )
    if checkpoint.artifact is not None:
        model = read_model(checkpoint, dims, dtype, config)
    else:
        weights = Weights(checkpoint, dims, dtype, config.quantization)
        model = WhisperModel(weights, dims, has_beams=config.beam_size > 1)
        checkpoint.unload()
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        decoding=decoding,
        defaults=defaults,
        config=config,
        ready=ready_programs(checkpoint),
    )


def _read_settings(checkpoint: Checkpoint, config: WhisperConfig) -> _Settings:
    dims = ModelDims.of(checkpoint.config)
    generation = {**checkpoint.generation_config, **config.generation_config}
    tokenizer = checkpoint.fast_tokenizer()
    is_multilingual = config.is_multilingual
    if is_multilingual is None:
        is_multilingual = generation.get("is_multilingual", dims.num_vocab >= MULTILINGUAL_VOCAB)
    special = special_tokens(generation, tokenizer.added_tokens, is_multilingual=bool(is_multilingual))
    defaults = default_options(config, generation)
    try:
        resolve(defaults, special)
        _languages(config, special)
        if config.vad:
            silero_judge()
    except (ValueError, VadError) as error:
        raise ConfigError(str(error)) from None
    max_length = _max_length(config, generation.get("max_length"), dims)
    return _Settings(dims, generation, WhisperTokenizer(tokenizer, special), defaults, max_length)


def _languages(config: WhisperConfig, special: SpecialTokens) -> tuple[int, ...]:
    """The language tokens that detection chooses from."""
    wanted = [language_code(language) for language in config.languages] or list(special.languages)
    missing = [code for code in wanted if code not in special.languages]
    if missing:
        raise ValueError(f"languages names {', '.join(missing)}, which the model does not know")
    return tuple(special.languages[code] for code in wanted)


def _num_slots(config: WhisperConfig, bytes_each: int) -> int:
    most = max(MAX_SLOTS // config.beam_size, 2)
    return config.batch_size or max(2, min(most, SLOTS_BYTES // bytes_each))


def _contexts(config: WhisperConfig, dims: ModelDims) -> tuple[int, ...]:
    fitting = FITTING_FRAMES if config.encoder_context == "fit" else ()
    return (*(frames for frames in fitting if frames < dims.num_frames), dims.num_frames)


def _encoder_batch() -> int:
    return 1 if jax.default_backend() == "cpu" else 8


def _max_length(config: WhisperConfig, checkpoint_length: int | None, dims: ModelDims) -> int:
    if config.max_length is not None and config.max_length > dims.max_tokens:
        raise ConfigError(f"max_length is {config.max_length}, the model has {dims.max_tokens} positions")
    return min(config.max_length or checkpoint_length or dims.max_tokens, dims.max_tokens)


def _warn_of_translation(dims: ModelDims, defaults: TranscribeOptions) -> None:
    if defaults.task in ("translate", "both") and dims.decoder_layers < dims.encoder_layers:
        logger.warning(
            "task is %s, but models with a cut decoder (turbo, distil) were not trained to translate: "
            "decoder layers: %d, encoder layers: %d",
            defaults.task,
            dims.decoder_layers,
            dims.encoder_layers,
        )
