"""The device programs as they are compiled: traced for a bucket and a variant, before any row is there."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headrace.engines.llm.attention import choose_backend
from headrace.engines.llm.batch import (
    DecodeBatch,
    PackedPrefill,
    PrefillBatch,
    max_blocks,
    pack_history,
    pack_known,
    pack_prefill,
    pack_rows,
)
from headrace.engines.llm.choose import Greedy, Scores, has_native_head
from headrace.engines.llm.draft import DraftModel, draft_burst, draft_prefill
from headrace.engines.llm.eagle import eagle_burst, eagle_prefill
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.forward import split_hidden
from headrace.engines.llm.hidden_pages import HiddenPages
from headrace.engines.llm.kv_cache import KVCache, copy_pages
from headrace.engines.llm.logit_edits import Extras, all_allowed, no_edits
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.partition import ON_DEFAULT_DEVICE, Layout
from headrace.engines.llm.pipeline import EarlierStage, describe, entering_shape, shape_of
from headrace.engines.llm.programs import (
    BurstArguments,
    choose,
    decode_burst,
    decode_scores,
    prefill,
    prefill_scores,
)
from headrace.engines.llm.prompt_scores import pack_spans, score_prompts
from headrace.engines.llm.shapes import Shapes
from headrace.engines.llm.speculate import Speculation, ngram_burst
from headrace.engines.llm.variants import COPY_PAGES, ENTER_PREFILL, StageNumber, Variant
from headrace.engines.program_store import Device, program_signature
from headrace.engines.programs import ProgramKey

StopIds = list[tuple[int, ...]]


class Lowering:
    """Traces programs, and packs the arguments that a dispatch brings along."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        config: EngineConfig,
        shapes: Shapes,
        draft: DraftModel | None = None,
        layout: Layout = ON_DEFAULT_DEVICE,
        earlier: Sequence[EarlierStage] = (),
    ) -> None:
        graph, weights = nnx.split(decoder)
        self._model = decoder.config
        self._config = config
        self._shapes = shapes
        backend = choose_backend(config, decoder.config.head_dim)
        self._backend = backend
        self._has_native_head = has_native_head(decoder, backend)
        # Workers trace while the engine's thread donates the cache: they are given shapes alone.
        self.weights, self._cache = jax.tree.map(shape_of, (weights, cache))
        self._layout, self._earlier = layout, tuple(earlier)
        pages, all_ = layout.pages, layout.replicated
        self._copy = jax.jit(copy_pages, donate_argnames="cache", out_shardings=pages)
        self._choose = jax.jit(choose, static_argnames="num_top", out_shardings=all_)
        self._score_prompts = jax.jit(
            partial(score_prompts, graph), static_argnames="num_top", out_shardings=all_
        )
        one, two = (pages, all_), (pages, all_, all_)
        self._runs = {
            "decode": _jit(partial(decode_burst, graph, backend), one, "num_top"),
            "decode logits": _jit(partial(decode_scores, graph, backend), one),
            "speculate": _jit(partial(ngram_burst, graph, backend), one, "num_top", "speculation"),
            "prefill": _jit(partial(prefill, graph, backend), two, "sizes", "num_top"),
            "prefill logits": _jit(partial(prefill_scores, graph, backend), two, "sizes"),
        }
        self._draft = draft
        if draft is not None:
            self._draft_shapes = jax.tree.map(shape_of, (draft.weights, draft.cache))
            is_eagle = draft.is_eagle
            burst, catch_up = (eagle_burst, eagle_prefill) if is_eagle else (draft_burst, draft_prefill)
            burst = partial(burst, (graph, draft.graph), (backend, draft.backend))
            self._runs["speculate"] = _jit(burst, None, "num_top", "speculation")
            self._runs["draft prefill"] = _jit(partial(catch_up, draft.graph, draft.backend), None, "sizes")

    def lower(self, key: ProgramKey, arguments: Mapping[str, Any]) -> jax.stages.Lowered:
        """The traced program of a bucket for these arguments."""
        if isinstance(key.variant, StageNumber):
            return self._earlier[key.variant.number].lower(key, arguments, self.sizes(key.size))
        if key.kind == "copy":
            return self._copy.lower(cache=self._cache, **arguments)
        assert isinstance(key.variant, Variant)
        if key.kind == "choose":
            return self._choose.lower(num_top=key.variant.num_top, **arguments)
        if key.kind == "prompt scores":
            return self._score_prompts.lower(self.weights, num_top=key.variant.num_top, **arguments)
        static: dict[str, Any] = {}
        weights, cache = self.weights, self._cache
        if "prefill" in key.kind:
            static["sizes"] = self.sizes(key.size)
        if key.kind == "speculate":
            static["speculation"] = self.speculation
            if self._draft is not None:
                own_weights, own_cache = self._draft_shapes
                weights, cache = (weights, own_weights), (cache, own_cache)
        if key.kind == "draft prefill":
            weights, cache = self._draft_shapes
        elif not key.kind.endswith("logits"):
            static["num_top"] = key.variant.num_top
        return self._runs[key.kind].lower(weights, cache=cache, **static, **arguments)

    def example(self, key: ProgramKey) -> dict[str, Any]:
        """Arguments of the shapes that a bucket has."""
        match key.kind:
            case "copy":
                return {"pages": np.zeros((2, COPY_PAGES), np.int32)}
            case "enter prefill" | "enter decode":
                return self._example_of_stage(key)
            case "prompt scores":
                hidden = self._shape((key.size, self._model.hidden_size), jnp.float32)
                return {"hidden": hidden, **pack_spans([], key.size)}
            case "prefill" | "prefill logits" | "draft prefill":
                arguments = self.pack_prefill(PrefillBatch([], [], []), [], key.size)
                arguments |= entering_shape(self._layout, key.size, self._model.hidden_size)
                num_rows = self._shapes.prefill_rows
            case "choose":
                packed = pack_rows([], [], key.size, self._shapes.table_width)
                arguments = {"scores": self._scores_shape(key.size), "packed": packed}
                num_rows = key.size
            case "decode logits":
                packed = pack_rows([], [], key.size, self._shapes.table_width)
                return {"packed": packed, **entering_shape(self._layout, key.size, self._model.hidden_size)}
            case _:
                extras = self._no_extras(key.size, key.variant)
                pack = self.pack_speculative if key.kind == "speculate" else self.pack_decode
                given = pack(DecodeBatch([], 1, 1), [], key.size, extras)
                entering = entering_shape(self._layout, key.size, self._model.hidden_size)
                return {"given": given, **entering}
        if key.kind == "draft prefill":
            return {**arguments, **self.read_by_head(self._cache)}
        if key.kind == "prefill logits":
            return arguments
        return {**arguments, "extras": self._no_extras(num_rows, key.variant)}

    def made_from(self) -> dict[str, str]:
        """All that a program depends on beside its key and its arguments: of the config, what is traced."""
        return {
            "engine": "text",
            "model": repr(self._model),
            "XLA options": repr(self._config.compilation.xla_options),
            "speculation": repr(self.speculation),
            "shapes": repr(self._shapes),
            "backend": self._backend,
            "devices": describe(self._layout, self.weights),
            "earlier stages": repr([stage.made_from() for stage in self._earlier]),
            "weights": repr(program_signature(self.weights)),
            "pages": repr(program_signature(self._cache)),
            "draft": repr(
                self._draft and (self._draft.model_config, self._draft.backend, self._draft.is_eagle)
            ),
            "draft arrays": repr(self._draft and program_signature(self._draft_shapes)),
        }

    def devices(self, key: ProgramKey) -> list[Device] | None:
        """The devices that a program runs on; None: JAX's default device."""
        if isinstance(key.variant, StageNumber):
            return self._earlier[key.variant.number].layout.devices
        return self._layout.devices

    def sizes(self, num_tokens: int) -> PackedPrefill:
        """Sizes of a prefill of so many tokens."""
        rows = self._shapes.prefill_rows
        return PackedPrefill(rows, num_tokens, max_blocks(num_tokens, rows), self._shapes.table_width)

    def pack_prefill(self, batch: PrefillBatch, stop_ids: StopIds, size: int) -> dict[str, Any]:
        """The arguments of a prefill but for the extras."""
        return {"packed": pack_prefill(batch, stop_ids, self.sizes(size), self._config.pad_token_id)}

    def pack_decode(self, batch: DecodeBatch, stop_ids: StopIds, size: int, extras: Extras) -> BurstArguments:
        """What a decode burst is told."""
        known = pack_known(batch.sequences, size, self._shapes.burst)
        return self._pack_burst(batch, stop_ids, known, extras)

    def pack_speculative(
        self, batch: DecodeBatch, stop_ids: StopIds, size: int, extras: Extras
    ) -> BurstArguments:
        """What a speculative burst is told."""
        length = self._shapes.table_width * self._config.cache.page_size
        if self._config.speculative.method == "draft_model":
            length = 0  # it knows the tokens by its pages
        return self._pack_burst(batch, stop_ids, pack_history(batch.sequences, size, length), extras)

    def _pack_burst(
        self, batch: DecodeBatch, stop_ids: StopIds, tokens: np.ndarray, extras: Extras
    ) -> BurstArguments:
        rows = pack_rows(batch.sequences, stop_ids, len(tokens), self._shapes.table_width)
        bounds = np.asarray([min(batch.max_steps, self._shapes.burst), batch.min_active], np.int32)
        arrays: dict[str, Any] = {"packed": rows, "tokens": tokens, "bounds": bounds}  # the host's
        return BurstArguments(**arrays, extras=extras)

    def read_by_head(self, cache: KVCache) -> dict[str, HiddenPages]:
        """The model's hidden states, where an EAGLE head is to see them."""
        hidden = split_hidden(cache)[1]
        return {"hidden": hidden[0]} if hidden else {}

    @property
    def speculation(self) -> Speculation:
        """What is fixed in the programs that check proposals."""
        config = self._config.speculative
        lookup = (config.prompt_lookup_min, config.prompt_lookup_max)
        return Speculation(config.num_speculative_tokens, lookup, self._shapes.burst)

    def _no_extras(self, num_rows: int, variant: Any) -> Extras:
        """Extras of a variant's shapes that change nothing."""
        assert isinstance(variant, Variant)
        logits = np.zeros((num_rows, self._model.vocab_size), np.float32)
        return Extras(
            no_edits(num_rows, variant.edit_width) if variant.edit_width else None,
            all_allowed(num_rows, self._model.vocab_size) if variant.has_mask else None,
            logits if variant.has_logits else None,
        )

    def _example_of_stage(self, key: ProgramKey) -> dict[str, Any]:
        assert isinstance(key.variant, StageNumber)
        if key.kind == ENTER_PREFILL:
            arguments = self.pack_prefill(PrefillBatch([], [], []), [], key.size)
        else:
            arguments = {"packed": pack_rows([], [], key.size, self._shapes.table_width)}
        return {**arguments, **self._earlier[key.variant.number].entering(key.size)}

    def _shape(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """Of an array that one program gives to another."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._layout.replicated)

    def _scores_shape(self, num_rows: int) -> Scores:
        logits = self._shape((num_rows, self._model.vocab_size), jnp.float32)
        if not self._has_native_head:
            return Scores(logits, None)  # pyright: ignore[reportArgumentType]
        shapes = [self._shape((num_rows,), dtype) for dtype in (jnp.int32, jnp.float32)]
        return Scores(logits, Greedy(*shapes))  # pyright: ignore[reportArgumentType]


def _jit(function: Any, results: Any, *static: str) -> Any:
    return jax.jit(function, donate_argnames="cache", static_argnames=static, out_shardings=results)
