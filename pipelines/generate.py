"""The job that continues prompts: rows to requests of the LLM engine, its outputs to rows of the results."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.engines import RequestError, RowError
from headrace.engines.checkpoints import Checkpoint, LocalModel, open_checkpoint, resolve_model
from headrace.engines.llm import LLM, EngineConfig, RequestOutput, SamplingParams, check_model
from headrace.engines.llm.guided import check_guide
from headrace.engines.llm.logprobs import TokenLogprobs
from headrace.pipelines.config import GenerateConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.prompts import Prompt, fill_template, read_prompt, template_fields
from headrace.pipelines.scans import TableRow, TableScan
from headrace.pipelines.schemas import generate_schema
from headrace.pipelines.summary import Unit
from headrace.pipelines.tables import TABLE_FORMATS, table_format
from headrace.pipelines.work import (
    ResultRow,
    Work,
    WorkRow,
    as_text,
    kept_values,
    require_columns,
    row_key,
    without_half_characters,
)

PROMPT_COLUMNS = ("prompt", "messages")
# Of English text and most tokenizers, for estimates of work.
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class GenerateWork:
    """Prompts of tables, one result each."""

    config: GenerateConfig
    """What the run was told."""
    kept: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The input columns that are carried through, with their types."""

    job: ClassVar[str] = "generate"
    unit: ClassVar[Unit] = "tokens"
    sums: ClassVar[tuple[str, ...]] = ("prompt_tokens", "cached_tokens", "completion_tokens")
    times: ClassVar[tuple[str, ...]] = ("queue_s", "ttft_s", "latency_s")

    @property
    def schema(self) -> pa.Schema:
        return generate_schema(self.config.extra_columns, self.kept)

    @property
    def files_per_shard(self) -> int:
        return 1

    @property
    def typed_columns(self) -> tuple[str, ...]:
        return ()

    def work_columns(self, scan: TableScan) -> tuple[str, ...]:
        return self.content_columns("the table", scan.columns)

    def row_work(self, values: Mapping[str, Any], path: str) -> float:
        characters = sum(len(as_text(value)) for value in values.values())
        return characters / _CHARACTERS_PER_TOKEN + self.config.max_tokens

    def file_work(self, path: str, size: int | None) -> float:
        raise AssertionError("every file of prompts is a table")

    def with_kept(self, kept: pa.Schema) -> Work:
        return replace(self, kept=kept)

    def is_table(self, path: str) -> bool:
        if table_format(path) is None:
            endings = ", ".join(f".{each}" for each in TABLE_FORMATS)
            raise InputError(f"{path} is not a table of prompts: give files that end in {endings}")
        return True

    def content_columns(self, source: str, columns: Sequence[str]) -> tuple[str, ...]:
        if self.config.template is not None:
            wanted = template_fields(self.config.template)
        elif self.config.prompt_column is not None:
            wanted = (self.config.prompt_column,)
        else:
            wanted = next(((name,) for name in PROMPT_COLUMNS if name in columns), PROMPT_COLUMNS[:1])
        if self.config.priority_column is not None:
            wanted = (*wanted, self.config.priority_column)
        require_columns(wanted, source, columns)
        return wanted

    def check(self) -> None:
        check_guide(sampling_params(self.config))
        engine_config(self.config).speculative.require_model()
        if self.config.template is not None:
            template_fields(self.config.template)

    def check_model(self, model: LocalModel) -> None:
        chat = self.config.chat or self.config.system is not None
        params = sampling_params(self.config)
        check_model(
            self.open(model),
            engine_config(self.config),
            params,
            chat=chat,
            tokenizer=self.config.tokenizer,
            chat_template=self.config.chat_template,
        )

    def load(self) -> LLM:
        llm = self.load_engine()
        llm.announce(sampling_params(self.config))
        return llm

    def load_engine(self) -> LLM:
        """The engine, before it is told which params to foresee."""
        model = resolve_model(self.config.model, revision=self.config.revision)
        return LLM(
            self.open(model),
            engine_config(self.config),
            tokenizer=self.config.tokenizer,
            chat_template=self.config.chat_template,
        )

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        key = row_key(self.config, source, row.row, row.values)
        if row.error is not None:
            return WorkRow(key=key, error=row.error)
        shown = kept_values(self.kept, generate_schema(self.config.extra_columns), row.values)
        try:
            prompt = self._prompt(row, content)
            priority = self._priority(row)
        except RequestError as error:
            return WorkRow(key=key, shown=shown, error=RowError.of(error))
        row_shown = {"prompt": prompt.shown, **shown}
        work_row = WorkRow(key=key, payload=prompt.content, shown=row_shown, priority=priority)
        return without_half_characters(work_row)

    def prepare_file(self, path: str, source: str) -> WorkRow:
        raise AssertionError("every file of prompts is a table")

    def submit(self, engine: LLM, row: WorkRow) -> "Future[RequestOutput]":
        # A system message means a conversation.
        chat = self.config.chat or self.config.system is not None
        params = sampling_params(self.config)
        return engine.submit(
            row.payload,
            params,
            request_id=row.request_id,
            chat=chat,
            system=self.config.system,
            priority=row.priority,
        )

    def finish(self, row: WorkRow, output: RequestOutput) -> ResultRow:
        if output.error is not None:
            return self._failed(row, output.error, output)
        completion = output.outputs[0]
        num_tokens = sum(len(each.token_ids) for each in output.outputs)
        values = {
            **row.key,
            **row.shown,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "prompt_tokens": len(output.prompt_token_ids),
            "cached_tokens": output.cached_tokens,
            "completion_tokens": num_tokens,
            "seed": completion.seed,
            "quality_flags": list(output.quality_flags),
            "error": None,
            "queue_s": output.queue_s,
            "ttft_s": output.ttft_s,
            "latency_s": output.latency_s,
            "token_ids": completion.token_ids,
            "cumulative_logprob": completion.cumulative_logprob,
            "texts": [each.text for each in output.outputs],
            "logprobs": list_places(completion.logprobs),
            "prompt_logprobs": list_places(output.prompt_logprobs),
        }
        return ResultRow(values, None, float(num_tokens))

    def fail(self, row: WorkRow) -> ResultRow:
        assert row.error is not None, "the row has no error"
        return self._failed(row, row.error, None)

    def write_beside(self, output: str) -> None:
        """Nothing."""

    def _failed(self, row: WorkRow, error: RowError, output: RequestOutput | None) -> ResultRow:
        flags = list(output.quality_flags) if output else []
        values = {**row.key, **row.shown, "finish_reason": "error", "quality_flags": flags}
        return ResultRow({**values, "error": error.message}, error, 0.0)

    def open(self, model: LocalModel) -> Checkpoint:
        """The model under the config that the run was told."""
        checkpoint = open_checkpoint(model)
        overrides = self.config.overrides
        return checkpoint.with_config({**checkpoint.config, **overrides}) if overrides else checkpoint

    def _prompt(self, row: TableRow, content: Sequence[str]) -> Prompt:
        if self.config.template is not None:
            return fill_template(self.config.template, row.values)
        return read_prompt(content[0], row.values)

    def _priority(self, row: TableRow) -> int:
        """The row's priority; 0 where it has none."""
        name = self.config.priority_column
        value = row.values.get(name) if name is not None else None
        if value is None:
            return 0
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = None
        if number is None or number != float(value):
            raise RequestError(f"{name} is no whole number: give one, or null for 0", kind="priority")
        return number


def list_places(places: Sequence[TokenLogprobs | None] | None) -> list[list[dict[str, Any]] | None] | None:
    """Log-probabilities as they are written: the tokens of each place in a list."""
    if places is None:
        return None
    return [
        None
        if place is None
        else [
            {"token_id": token, "token": found.decoded_token, "logprob": found.logprob, "rank": found.rank}
            for token, found in place.items()
        ]
        for place in places
    ]


def sampling_params(config: GenerateConfig) -> SamplingParams:
    """How each row is sampled; without one_seed the engine derives a row's seed from the job's."""
    return SamplingParams(
        max_tokens=config.max_tokens,
        min_tokens=config.min_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        seed=config.seed if config.one_seed else None,
        stop=config.stop,
        stop_token_ids=config.stop_token_ids,
        ignore_eos=config.ignore_eos,
        **config.decoding.params(),
    )


def engine_config(config: GenerateConfig) -> EngineConfig:
    """How the engine is set up; what the run was not told is left to the engine's own defaults."""
    chosen: dict[str, Any] = {
        "eos_token_ids": config.eos_token_ids or None,
        "bos_token_id": config.bos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    scheduler = config.scheduler
    if config.priority_column is not None:
        scheduler = replace(scheduler, policy="priority")
    return EngineConfig(
        scheduler=scheduler,
        cache=config.cache,
        compilation=config.compilation,
        speculative=config.speculative,
        parallel=config.parallel,
        dtype=config.dtype,
        quantization=config.quantization,
        attention_backend=config.attention_backend,
        deterministic=config.deterministic,
        overlong=config.overlong,
        seed=config.seed,
        **{name: value for name, value in chosen.items() if value is not None},
    )
