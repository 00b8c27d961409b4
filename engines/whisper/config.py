"""Settings of the Whisper engine: the job's, one row's, and the model's own dimensions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from headrace.audio import cut_windows
from headrace.engines.errors import ConfigError, ModelError
from headrace.engines.quantization import Quantization
from headrace.engines.serialization import Serializable

Timestamps = Literal["none", "segment", "word"]
ReturnTimestamps = bool | str | None
Stride = float | tuple[float, float] | None
Mode = Literal["chunked", "sequential"]
EncoderContext = Literal["full", "fit"]
WindowFill = Literal["silence", "zeros"]
MAX_BEAMS = 32
"""Most texts of a window that are followed side by side."""
_COUNTS = (
    *("batch_size", "encoder_batch", "max_length", "decode_burst", "decode_threads"),
    *("beam_size", "best_of"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WhisperConfig(Serializable):
    """Settings of a Whisper engine that hold for every row, unless a call or a row says otherwise."""

    batch_size: int | None = None
    """Decoder slots, windows that are decoded side by side; None: chosen from the model's size."""
    encoder_batch: int | None = None
    """Windows the encoder takes at a time; None: 1 on a CPU, 8 on an accelerator."""
    max_length: int | None = None
    """Most tokens of a window, prompt included; None: the checkpoint's, at most its positions."""
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    """Entries that replace those of the checkpoint's generation_config.json."""
    encoder_context: EncoderContext = "full"
    """"full": the encoder takes 30 s, as it was trained; "fit": of a recording of at most 12 s its length and
    a margin of silence, and 30 s again where the text that this gives is not trusted."""
    window_fill: WindowFill = "silence"
    """What fills a window after the recording's end: "silence", or "zeros" of the scaled spectrogram, a faint
    noise, as in `transcribe` of openai/whisper and of faster-whisper."""
    language: str | None = None
    """Code or English name of the language spoken; None: detected, window by window."""
    task: str | None = None
    """"transcribe", "translate" (into English) or "both", from one pass of the encoder; None: the
    checkpoint's, else "transcribe"."""
    return_timestamps: ReturnTimestamps = None
    """None, False, "none": text only; True, "segment": times of segments; "word": of words too."""
    is_multilingual: bool | None = None
    """Replaces the checkpoint's own statement; None: from the checkpoint."""
    dtype: str = "auto"
    """"bfloat16", "float32", or "auto": bfloat16."""
    quantization: Quantization | None = None
    """"int8": the weights of products, but convolutions, made at load time with a scale for each output."""
    chunk_length_s: float = 30.0
    """Seconds of a window, strides included; more than both strides, at most 30."""
    stride_length_s: Stride = None
    """Seconds shared with the neighbour, left and right; None: windows end in the longest pause of their last
    third and share nothing, and where there is no pause a sixth of chunk_length_s each."""
    mode: Mode = "chunked"
    """"chunked": all windows of a recording at once; "sequential": each begins where the last text ended."""
    vad: bool = False
    """Whether windows are packed from the stretches that voice activity detection calls speech."""
    initial_prompt: str | None = None
    """Text that counts as said before the recording; in chunked mode before every window."""
    hotwords: str | None = None
    """Words that count as said before every window, so that they are spelt so."""
    condition_on_previous_text: bool = False
    """Whether a window is told the text before it; sequential mode only."""
    channel: int | None = None
    """The one channel to take, counted from 0; None: the mean of all."""
    languages: tuple[str, ...] = ()
    """Codes or names of the languages that detection chooses from; (): all that the model knows."""
    no_speech_threshold: float = 0.6
    """A window is empty above this no-speech probability where its mean log-probability is low too."""
    logprob_threshold: float = -1.0
    """Mean log-probability below which a window is not trusted."""
    language_threshold: float = 0.5
    """Probability of the detected language below which a window is flagged."""
    compression_ratio_threshold: float = 2.4
    """Text that zlib shrinks more than this is taken for a loop: retried, flagged if no retry mends it."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Sampling temperatures: 0, greedy, for every window, the others in turn while a text is not trusted."""
    beam_size: int = 1
    """Texts of a window that are followed side by side at temperature 0; 1: greedy."""
    patience: float = 1.0
    """A window's beam search ends with beam_size times so many ended texts."""
    best_of: int = 1
    """Texts of a window that are drawn at a temperature above 0, of which the likeliest stays."""
    length_penalty: float | None = None
    """Power of (5 + length) / 6 that a text's log-probability is divided by; None: by the length itself."""
    silence_dbfs: float = -70.0
    """A window whose loudest 30 ms lie below this level is digital silence: empty text, not decoded."""
    max_tokens_per_s: float = 25.0
    """Most tokens a second of audio may give, 32 more allowed; a loop ends there instead of at max_length."""
    decode_burst: int = 16
    """Most decoder steps of one dispatch."""
    decode_threads: int = 2
    """Threads that decode audio beside the engine."""
    deterministic: bool = False
    """Fixed shapes: a row's text depends on its audio, batch_size and encoder_batch, on nothing beside it."""
    seed: int = 0
    """Seed of sampled retries, folded with the window's number in its recording."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: it must be at least 1")
        self._check_search()
        if (
            not self.temperatures
            or self.temperatures[0] != 0
            or list(self.temperatures) != sorted(self.temperatures)
        ):
            raise ConfigError(f"temperatures is {self.temperatures}: it must begin with 0 and rise")
        if self.encoder_context not in ("full", "fit"):
            raise ConfigError(f"encoder_context is {self.encoder_context!r}: it must be 'full' or 'fit'")
        if self.window_fill not in ("silence", "zeros"):
            raise ConfigError(f"window_fill is {self.window_fill!r}: it must be 'silence' or 'zeros'")
        if self.window_fill == "zeros" and self.encoder_context == "fit":
            raise ConfigError(
                "window_fill is 'zeros' and encoder_context 'fit', which needs silence there: leave one out"
            )
        if self.quantization not in (None, "int8"):
            raise ConfigError(f"quantization is {self.quantization!r}: it must be None or 'int8'")
        if self.max_tokens_per_s <= 0:
            raise ConfigError(f"max_tokens_per_s is {self.max_tokens_per_s}: it must be above 0")
        self.options()

    def _check_search(self) -> None:
        if not 0 < self.patience < math.inf:
            raise ConfigError(f"patience is {self.patience}: it must be above 0")
        if self.beam_size > MAX_BEAMS:
            raise ConfigError(f"beam_size is {self.beam_size}: it must be at most {MAX_BEAMS}")
        if self.patience != 1.0 and self.beam_size == 1:
            raise ConfigError("patience is given and beam_size is 1, which searches nothing: raise beam_size")
        if self.best_of > 1 and self.temperatures == (0.0,):
            raise ConfigError("best_of is given and temperatures is 0 alone, which draws nothing: add others")
        if self.length_penalty is not None:
            if not math.isfinite(self.length_penalty):
                raise ConfigError(f"length_penalty is {self.length_penalty}: it must be a finite number")
            if self.beam_size == 1 and self.best_of == 1:
                raise ConfigError(
                    "length_penalty is given, and one text leaves no choice: raise beam_size or best_of"
                )

    def options(self) -> "TranscribeOptions":
        """What holds where neither a call nor a row says anything."""
        names = (field.name for field in fields(TranscribeOptions))
        return TranscribeOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscribeOptions(Serializable):
    """What one call or one row asks for; None means: as the engine's config says."""

    language: str | None = None
    """Code ("de") or English name ("german") of the language spoken."""
    task: str | None = None
    """"transcribe", "translate" or "both"."""
    return_timestamps: ReturnTimestamps = None
    """False, "none": text only; True, "segment": times of segments; "word": of words too."""
    chunk_length_s: float | None = None
    """Seconds of a window, strides included."""
    stride_length_s: Stride = None
    """Seconds shared with the neighbour, left and right."""
    mode: Mode | None = None
    """"chunked" or "sequential"."""
    vad: bool | None = None
    """Whether windows are packed from speech alone."""
    initial_prompt: str | None = None
    """Text that counts as said before."""
    hotwords: str | None = None
    """Words that count as said before every window."""
    condition_on_previous_text: bool | None = None
    """Whether a window is told the text before it."""
    channel: int | None = None
    """The one channel to take, counted from 0."""

    def __post_init__(self) -> None:
        if self.task not in (None, "transcribe", "translate", "both"):
            raise ValueError(f"task is {self.task!r}: it must be 'transcribe', 'translate' or 'both'")
        if self.mode not in (None, "chunked", "sequential"):
            raise ValueError(f"mode is {self.mode!r}: it must be 'chunked' or 'sequential'")
        if self.channel is not None and self.channel < 0:
            raise ValueError(f"channel is {self.channel}: channels are counted from 0")
        if self.return_timestamps is not None:
            timestamps_mode(self.return_timestamps)
        if self.chunk_length_s is not None:
            cut_windows(0, self.chunk_length_s, self.stride_length_s)  # checks the two

    def over(self, other: "TranscribeOptions") -> "TranscribeOptions":
        """These options, with the gaps filled from `other`."""
        filled = {
            field.name: _first(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
        }
        if self.chunk_length_s is not None:
            # A stride belongs to its chunk length: the default of a new chunk length is not the old stride.
            filled["stride_length_s"] = self.stride_length_s
        return TranscribeOptions(**filled)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDims(Serializable):
    """Dimensions of a Whisper model."""

    num_mels: int
    """Mel bands of the encoder's input, 80 or 128."""
    num_vocab: int
    """Rows of the token embedding."""
    width: int
    """Size of the residual stream."""
    encoder_layers: int
    """Layers of the encoder."""
    encoder_heads: int
    """Attention heads of the encoder."""
    decoder_layers: int
    """Layers of the decoder."""
    decoder_heads: int
    """Attention heads of the decoder."""
    num_frames: int
    """Positions of the encoder's output, 1500 for 30 s."""
    max_tokens: int
    """Positions of the decoder, 448."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ModelDims":
        """The dimensions in a config.json of model_type "whisper".

        Raises:
          ModelError: another model type, a missing field, or an activation other than gelu.
        """
        if config.get("model_type", "whisper") != "whisper":
            raise ModelError(f"model_type is {config['model_type']!r}: the Whisper engine takes 'whisper'")
        if config.get("activation_function", "gelu") != "gelu":
            raise ModelError(
                f"activation_function is {config['activation_function']!r}: only 'gelu' is known"
            )
        if config.get("scale_embedding", False):
            raise ModelError("scale_embedding is true: no known Whisper model scales its embedding")
        try:
            return cls(
                num_mels=int(config["num_mel_bins"]),
                num_vocab=int(config["vocab_size"]),
                width=int(config["d_model"]),
                encoder_layers=int(config["encoder_layers"]),
                encoder_heads=int(config["encoder_attention_heads"]),
                decoder_layers=int(config["decoder_layers"]),
                decoder_heads=int(config["decoder_attention_heads"]),
                num_frames=int(config.get("max_source_positions", 1500)),
                max_tokens=int(config.get("max_target_positions", 448)),
            )
        except KeyError as error:
            raise ModelError(f"config.json of a Whisper model lacks {error.args[0]!r}") from None

    def __post_init__(self) -> None:
        if self.num_mels not in (80, 128):
            raise ModelError(f"num_mel_bins is {self.num_mels}: Whisper models take 80 or 128")
        for heads in (self.encoder_heads, self.decoder_heads):
            if self.width % heads:
                raise ModelError(f"d_model {self.width} is not a multiple of its {heads} attention heads")

    @property
    def head_width(self) -> int:
        return self.width // self.decoder_heads

    @property
    def window_samples(self) -> int:
        """Samples of the encoder's input: two mel frames of 160 samples a position."""
        return self.num_frames * 320


def timestamps_mode(value: ReturnTimestamps) -> Timestamps:
    """The mode that a `return_timestamps` argument names.

    Raises:
      ValueError: an unknown mode.
    """
    if value in (None, False, "none"):
        return "none"
    if value in (True, "segment"):
        return "segment"
    if value == "word":
        return "word"
    raise ValueError(f"return_timestamps is {value!r}: it must be False, 'none', True, 'segment' or 'word'")


def _first(value: Any, fallback: Any) -> Any:
    return fallback if value is None else value
