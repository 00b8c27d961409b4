"""What is compiled before a batch needs it: for rows that were announced, and for those that wait."""

import time
from collections.abc import Callable, Sequence

from headrace.engines.buckets import pick_bucket
from headrace.engines.compilation_config import CompilationConfig
from headrace.engines.errors import ConfigError
from headrace.engines.llm.request import LLMRequest
from headrace.engines.llm.shapes import Shapes
from headrace.engines.llm.variants import COPY, PLAIN_NEEDS, Needs, needs_of, programs_for
from headrace.engines.programs import ProgramKey, Programs

SMALL_BUCKETS_AFTER_S = 10.0
"""Seconds of work after which the rest of the buckets is compiled: a small job has ended by then."""

MAX_KINDS = 8
"""Kinds of rows whose programs are compiled in the background."""


class Foresight:
    """What the rows of one engine are going to need of its programs."""

    def __init__(
        self, programs: Programs, shapes: Shapes, max_model_len: int, config: CompilationConfig
    ) -> None:
        self._programs = programs
        self._shapes = shapes
        self._max_model_len = max_model_len
        self._config = config
        self._first_launch_s: float | None = None
        self._announced: tuple[Needs, ...] = ()
        self._seen: dict[Needs, None] = {}

    def announce(self, requests: Sequence[LLMRequest]) -> None:
        """Foresees the programs of rows like these, beside those that were announced before."""
        needs = (needs_of(request, self._max_model_len, self._shapes.burst) for request in requests)
        self._announced = tuple(dict.fromkeys((*self._announced, *needs)))
        self._programs.plan(programs_for(self._shapes, self._announced))

    def note(self, request: LLMRequest) -> None:
        """Takes a row into account where programs are compiled ahead of their use."""
        if len(self._seen) < MAX_KINDS and not self._programs.is_warm:
            self._seen[needs_of(request, self._max_model_len, self._shapes.burst)] = None

    def note_launch(self) -> None:
        """Notes that work has begun."""
        self._first_launch_s = self._first_launch_s or time.monotonic()

    def expect(self, num_rows: int, num_tokens: int) -> None:
        """Has the programs compiled that so many rows, with so many tokens to prefill, are going to need."""
        if not self._config.aot or num_rows == 0:
            return
        shapes, needs = self._shapes, self._announced or tuple(self._seen) or (PLAIN_NEEDS,)
        num_tokens = min(max(num_tokens, 1), shapes.prefill_tokens[-1])
        next_shapes = shapes._replace(
            prefill_tokens=(pick_bucket(shapes.prefill_tokens, num_tokens),),
            decode_rows=(pick_bucket(shapes.decode_rows, min(num_rows, shapes.decode_rows[-1])),),
            speculative_rows=tuple(size for size in shapes.speculative_rows if size >= num_rows)[:1],
        )
        wanted = programs_for(next_shapes, [_narrowest(each) for each in needs])
        keys = [key for key in wanted if key.kind != COPY.kind]
        if self._first_launch_s and time.monotonic() - self._first_launch_s > SMALL_BUCKETS_AFTER_S:
            keys += reversed(programs_for(shapes, needs))
        self._programs.expect(keys)

    def precompile(
        self,
        num_tokens: int | Sequence[int] | None,
        num_seqs: int | Sequence[int] | None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[ProgramKey]:
        """Compiles the programs of these prefills and decodes, or all; those that were not compiled before.

        `on_progress(completed, total)` is called after each program.

        Raises:
          ConfigError: a number is larger than the largest bucket.
        """
        needs = self._announced or (PLAIN_NEEDS,)
        if num_tokens is None and num_seqs is None:
            keys = programs_for(self._shapes, needs)
        else:
            chosen = [self._shapes.only_for(*pair) for pair in _paired(num_tokens, num_seqs)]
            wanted = [key for shapes in chosen for key in programs_for(shapes, needs)]
            keys = [key for key in wanted if key.kind != COPY.kind]
        keys = list(dict.fromkeys(keys))
        new = self._programs.expect(keys)
        for completed, key in enumerate(keys, 1):
            self._programs.precompile([key])
            if on_progress is not None:
                on_progress(completed, len(keys))
        return new


def _narrowest(needs: Needs) -> Needs:
    """The same with the least room for touched tokens: what a job's first rows need."""
    return needs._replace(prefill_widths=needs.prefill_widths[:1], decode_widths=needs.decode_widths[:1])


def _paired(
    num_tokens: int | Sequence[int] | None, num_seqs: int | Sequence[int] | None
) -> list[tuple[int | None, int | None]]:
    """The numbers side by side; the last of a shorter list is repeated.

    e.g. [128, 512, 1024] and 8 -> (128, 8), (512, 8), (1024, 8)
    """
    lists = [[each] if isinstance(each, int | None) else list(each) for each in (num_tokens, num_seqs)]
    if not all(lists):
        raise ConfigError("precompile was given an empty list: give numbers, or nothing for every bucket")
    length = max(map(len, lists))
    first, second = (each + each[-1:] * (length - len(each)) for each in lists)
    return list(zip(first, second, strict=True))
