"""Runs batches on the device: one program for prefills and one for bursts of decode steps, by bucket."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headrace.engines.buckets import pick_bucket
from headrace.engines.checkpoints.artifact import PROGRAMS, write_weights
from headrace.engines.llm.attention import Backend, choose_backend
from headrace.engines.llm.batch import (
    DecodeBatch,
    PrefillBatch,
    Sampled,
    pack_rows,
    packed_rows,
    unpack_sampled,
)
from headrace.engines.llm.choose import Scores
from headrace.engines.llm.draft import Draft, DraftModel, lagging
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.foresight import Foresight
from headrace.engines.llm.hidden_pages import make_hidden_pages
from headrace.engines.llm.host_rules import add_host_rules, need_host
from headrace.engines.llm.kv_cache import NULL_PAGE, KVCache, make_pages
from headrace.engines.llm.logit_edits import Extras, pack_edits, pack_mask
from headrace.engines.llm.logprobs import count_top, top_bucket
from headrace.engines.llm.lowering import Lowering, StopIds
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.pipeline import EarlierStage, EarlierStages, Stage, shape_of
from headrace.engines.llm.prompt_scores import PromptSpan, pack_spans, record_spans, take_spans
from headrace.engines.llm.request import Sequence as Row
from headrace.engines.llm.shapes import choose_shapes
from headrace.engines.llm.variants import (
    COPY,
    COPY_PAGES,
    ENTER_DECODE,
    ENTER_PREFILL,
    PLAIN,
    PLAIN_NEEDS,
    StageNumber,
    Variant,
    programs_for,
)
from headrace.engines.prepared import named_arrays
from headrace.engines.program_store import ProgramStore, ReadyPrograms, open_program_store
from headrace.engines.programs import ProgramKey, Programs


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """A batch that was launched; its result is on the device, or will be."""

    batch: PrefillBatch | DecodeBatch
    key: ProgramKey
    """The program that runs it: its size is the tokens of a prefill, the rows of a decode."""
    result: jax.Array
    num_top: int
    most_steps: int
    """Tokens a row for which the result has room."""
    spans: list[PromptSpan] = field(default_factory=list)
    """What is scored of prompts."""
    prompt_scores: jax.Array | None = None


class Runner:
    """Owns the weights and the KV pages, and turns a batch into tokens with one dispatch."""

    def __init__(
        self,
        stages: Sequence[Stage],
        config: EngineConfig,
        num_pages: int,
        max_model_len: int,
        dtype: jnp.dtype,
        draft: Draft | None = None,
        ready: ReadyPrograms | None = None,
    ) -> None:
        """`stages` are those of the model's pipeline, a single one where it has none."""
        decoder, layout = stages[-1]
        self._graph, self._weights = nnx.split(decoder)
        self._draft = None if draft is None else DraftModel(draft, num_pages, config.cache.page_size)
        backend = choose_backend(config, decoder.config.head_dim)
        *caches, self._cache = _make_caches(stages, config, num_pages, dtype, backend)
        earlier = [
            EarlierStage(stage, StageNumber(number), cache, backend)
            for number, (stage, cache) in enumerate(zip(stages, caches, strict=False))
        ]
        self._earlier = EarlierStages(earlier, layout)
        self._config = config
        self._vocab_size = decoder.config.vocab_size
        self.num_pages = num_pages
        self.shapes = choose_shapes(config, max_model_len)
        self.num_dispatches = 0
        self.padding_tokens = 0
        self._lowering = Lowering(decoder, self._cache, config, self.shapes, self._draft, layout, earlier)
        plan = programs_for(self.shapes, [PLAIN_NEEDS])
        self.programs = Programs(
            config.compilation,
            plan,
            self._lowering.lower,
            self._lowering.example,
            open_program_store(config.compilation.cache_dir, self._lowering.made_from(), ready),
            self._lowering.devices,
        )
        self.foresight = Foresight(self.programs, self.shapes, max_model_len, config.compilation)

    def launch(
        self, batch: PrefillBatch | DecodeBatch, stop_ids: StopIds, copies: list[tuple[int, int]]
    ) -> Dispatch:
        """Starts the work of a batch after copying pages; what is launched later runs after it."""
        self._copy_pages(copies)
        self.foresight.note_launch()
        self.num_dispatches += 1
        if isinstance(batch, PrefillBatch):
            return self._launch_prefill(batch, stop_ids)
        if batch.is_speculative:
            return self._launch_speculative(batch, stop_ids)
        return self._launch_decode(batch, stop_ids)

    def is_ready(self, batch: DecodeBatch) -> bool:
        """Whether the program is there that decodes these rows without proposals."""
        size = pick_bucket(self.shapes.decode_rows, len(batch.sequences))
        extras = self._pack_extras(batch, size, num_new=self.shapes.burst)
        variant = Variant.of(count_top(batch.sequences), extras)
        return self.programs.is_ready(ProgramKey("decode", size, variant))

    def fetch(self, dispatch: Dispatch) -> Sampled:
        """The tokens of a dispatch: of a prefill one a row, real where it was the row's last chunk."""
        batch, key = dispatch.batch, dispatch.key
        result, prompt_scores = jax.device_get((dispatch.result, dispatch.prompt_scores))
        is_speculative = key.kind == "speculate"
        sampled = unpack_sampled(result, dispatch.most_steps, dispatch.num_top, is_speculative=is_speculative)
        if prompt_scores is not None:
            record_spans(dispatch.spans, prompt_scores)
        if isinstance(batch, PrefillBatch):
            self.padding_tokens += key.size - batch.num_tokens
        elif sampled.proposed is None:
            num_steps = int(sampled.counts.max())
            self.padding_tokens += key.size * num_steps - int(sampled.counts.sum())
        return sampled

    def export(self, directory: Path) -> dict[str, str]:
        """Writes weights and foreseen programs into an artifact; by parts, all that programs depend on."""
        write_weights(directory, named_arrays(self._weights))
        lowering = Lowering(self.decoder, self._cache, self._config, self.shapes, self._draft)
        store = ProgramStore(directory / PROGRAMS, lowering.made_from())
        self.programs.export(store, self.programs.planned, lowering.lower)
        return store.made_from

    def update_weights(self, stages: Sequence[Stage]) -> None:
        """Puts other weights of the same shapes in the place of those that are there."""
        for own, other in zip(self._earlier.stages, stages, strict=False):
            own.update_weights(other.decoder)
        _, weights = nnx.split(stages[-1].decoder)
        shapes = jax.tree.map(shape_of, weights)
        assert shapes == self._lowering.weights, (
            "programs are compiled for the shapes and dtypes that there were"
        )
        if self._draft is not None:
            self._draft.follow(self.decoder, stages[-1].decoder)
        self._weights = weights  # other replicas may still use the old ones

    @property
    def decoder(self) -> Decoder:
        """The model with the weights that are in use; of a pipeline its last stage."""
        return nnx.merge(self._graph, self._weights)

    def release(self) -> None:
        """Frees weights and KV pages."""
        self.programs.close()
        if self._draft is not None:
            self._draft.release()
        for array in [*self._earlier.arrays(), *jax.tree.leaves((self._weights, self._cache))]:
            array.delete()

    def _launch_prefill(self, batch: PrefillBatch, stop_ids: StopIds) -> Dispatch:
        has_host, num_top = need_host(batch.sequences), count_top(batch.sequences)
        extras = self._pack_extras(batch, self.shapes.prefill_rows, num_new=0)
        kind, variant = ("prefill logits", PLAIN) if has_host else ("prefill", Variant.of(num_top, extras))
        key = self._pick(kind, self.shapes.prefill_tokens, batch.num_tokens, variant)
        arguments = self._lowering.pack_prefill(batch, stop_ids, key.size)
        arguments |= self._earlier.enter(self.programs, ENTER_PREFILL, key.size, arguments["packed"])
        arguments |= {} if has_host else {"extras": extras}
        program = self.programs.get(key, arguments)
        self._cache, result, hidden = program(self._weights, cache=self._cache, **arguments)
        if has_host:
            rows = packed_rows(arguments["packed"], self._lowering.sizes(key.size))
            result = self._choose_with_host(batch, result, rows, extras)
        spans = take_spans(batch)
        return Dispatch(
            batch=batch,
            key=key,
            result=result,
            num_top=num_top,
            most_steps=1,
            spans=spans,
            prompt_scores=self._score_prompts(spans, hidden) if spans else None,
        )

    def _launch_decode(self, batch: DecodeBatch, stop_ids: StopIds) -> Dispatch:
        sizes, num_top = self.shapes.decode_rows, count_top(batch.sequences)
        size = pick_bucket(sizes, len(batch.sequences))
        extras = self._pack_extras(batch, size, num_new=self.shapes.burst)
        has_host = need_host(batch.sequences)
        kind, variant = ("decode logits", PLAIN) if has_host else ("decode", Variant.of(num_top, extras))
        key = self._pick(kind, sizes, size, variant)
        if key.size != size:
            extras = self._pack_extras(batch, key.size, num_new=self.shapes.burst)
        if has_host:
            rows = pack_rows(batch.sequences, stop_ids, key.size, self.shapes.table_width)
            handed = self._earlier.enter(self.programs, ENTER_DECODE, key.size, rows)
            program = self.programs.get(key, {"packed": rows, **handed})
            self._cache, scores = program(self._weights, cache=self._cache, packed=rows, **handed)
            result, most_steps = self._choose_with_host(batch, scores, rows, extras), 1
        else:
            given = self._lowering.pack_decode(batch, stop_ids, key.size, extras)
            handed = self._earlier.enter(self.programs, ENTER_DECODE, key.size, np.asarray(given.packed))
            arguments = {"given": given, **handed}
            program = self.programs.get(key, arguments)
            self._cache, result = program(self._weights, cache=self._cache, **arguments)
            most_steps = self.shapes.burst
        return Dispatch(batch=batch, key=key, result=result, num_top=num_top, most_steps=most_steps)

    def _launch_speculative(self, batch: DecodeBatch, stop_ids: StopIds) -> Dispatch:
        size = pick_bucket(self.shapes.speculative_rows, len(batch.sequences))
        num_top = count_top(batch.sequences)
        extras = Extras(mask=pack_mask(batch.sequences, size, self._vocab_size))
        key = ProgramKey("speculate", size, Variant.of(num_top, extras))
        arguments = {"given": self._lowering.pack_speculative(batch, stop_ids, size, extras)}
        program, draft = self.programs.get(key, arguments), self._draft
        if draft is None:
            self._cache, result = program(self._weights, cache=self._cache, **arguments)
        else:
            self._catch_up(draft, batch.sequences)
            weights, cache = (self._weights, draft.weights), (self._cache, draft.cache)
            (self._cache, draft.cache), result = program(weights, cache=cache, **arguments)
        return Dispatch(batch=batch, key=key, result=result, num_top=num_top, most_steps=self.shapes.burst)

    def _catch_up(self, draft: DraftModel, sequences: list[Row]) -> None:
        """Lets the draft model see the tokens that were computed without it."""
        sizes, seen = self.shapes.prefill_tokens, {}
        if draft.is_eagle:
            # Its last proposals lie where the model's hidden states are to be.
            seen = {"ahead": 1, "again": self._config.speculative.num_speculative_tokens + 1}
        for batch in lagging(sequences, sizes[-1], self.shapes.prefill_rows, **seen):
            key = ProgramKey("draft prefill", pick_bucket(sizes, batch.num_tokens), PLAIN)
            arguments = self._lowering.pack_prefill(batch, [()] * len(batch.sequences), key.size)
            arguments |= self._lowering.read_by_head(self._cache)
            draft.cache = self.programs.get(key, arguments)(draft.weights, cache=draft.cache, **arguments)

    def _choose_with_host(
        self, batch: PrefillBatch | DecodeBatch, scores: Scores, rows: np.ndarray, extras: Extras
    ) -> jax.Array:
        """The result of one token a row: the host adds its rules while the device computes the logits."""
        extras = add_host_rules(extras, batch.sequences, scores.logits, self._vocab_size)
        arguments = {"scores": scores, "packed": rows, "extras": extras}
        key = ProgramKey("choose", len(rows), Variant.of(count_top(batch.sequences), extras))
        return self.programs.get(key, arguments)(**arguments)

    def _score_prompts(self, spans: list[PromptSpan], hidden: jax.Array) -> jax.Array:
        """The scores of prompt tokens, from the hidden states of a prefill."""
        num_top = top_bucket(max(span.trace.num_top for span in spans))
        arguments = {"hidden": hidden, **pack_spans(spans, hidden.shape[0])}
        key = ProgramKey("prompt scores", hidden.shape[0], Variant(num_top=num_top))
        return self.programs.get(key, arguments)(self._weights, **arguments)

    def _copy_pages(self, copies: list[tuple[int, int]]) -> None:
        for first in range(0, len(copies), COPY_PAGES):
            pages = np.full((2, COPY_PAGES), NULL_PAGE, np.int32)
            pages[:, : len(copies[first:][:COPY_PAGES])] = np.asarray(copies[first:][:COPY_PAGES]).T
            self._earlier.copy_pages(self.programs, pages)
            program = self.programs.get(COPY, {"pages": pages})
            self._cache = program(cache=self._cache, pages=pages)

    def _pick(self, kind: str, sizes: tuple[int, ...], count: int, variant: Variant) -> ProgramKey:
        """The bucket to run in: the smallest, or a larger one where only that is compiled."""
        smallest = ProgramKey(kind, pick_bucket(sizes, count), variant)
        if self._config.compilation.aot:
            fitting = [ProgramKey(kind, size, variant) for size in sizes if size >= count]
            return next((key for key in fitting if self.programs.is_ready(key)), smallest)
        return smallest

    def _pack_extras(self, batch: PrefillBatch | DecodeBatch, num_rows: int, num_new: int) -> Extras:
        sequences = batch.sequences
        return Extras(
            pack_edits(sequences, num_rows, num_new), pack_mask(sequences, num_rows, self._vocab_size)
        )


def _make_caches(
    stages: Sequence[Stage], config: EngineConfig, num_pages: int, dtype: jnp.dtype, backend: Backend
) -> list[KVCache]:
    """The KV pages of each stage; with those of the last, hidden states where an EAGLE head reads them."""
    page_size = config.cache.page_size
    kv_dtype = jnp.dtype(jnp.int8) if config.cache.kv_cache_dtype == "int8" else dtype
    caches: list[KVCache] = [
        make_pages(each.decoder.config, num_pages, page_size, kv_dtype, backend, each.layout.pages)
        for each in stages
    ]
    if config.speculative.use_eagle():
        hidden_size = stages[-1].decoder.config.hidden_size
        caches[-1] = (*caches[-1], make_hidden_pages(hidden_size, num_pages, page_size, dtype))
    return caches
