"""Forms of the device programs: what rows need beyond a plain choice of tokens, and so what is compiled."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.engines.buckets import pick_bucket
from headrace.engines.llm.logit_edits import EDIT_BUCKETS, EDITS_PER_BAD_WORD, Extras
from headrace.engines.llm.logprobs import top_bucket
from headrace.engines.llm.request import LLMRequest
from headrace.engines.llm.shapes import Shapes
from headrace.engines.programs import ProgramKey

COPY_PAGES = 32
"""Pages that are copied at once."""
COPY = ProgramKey("copy", COPY_PAGES)
ENTER_PREFILL, ENTER_DECODE = "enter prefill", "enter decode"
"""Programs of the pipeline stages before the last."""


class StageNumber(NamedTuple):
    """Whose program it is, of a pipeline's stages before the last."""

    number: int

    def __str__(self) -> str:
        return f" of stage {self.number}"


class Variant(NamedTuple):
    """What a program does for its rows beyond a plain choice of tokens."""

    num_top: int = 0
    """Most likely tokens that it reports beside each token."""
    edit_width: int = 0
    """Touched tokens of a row for which it has room; 0: no edits."""
    has_mask: bool = False
    """Whether it bars tokens by a mask of the vocabulary."""
    has_logits: bool = False
    """Whether it chooses from logits that the host has changed."""

    @classmethod
    def of(cls, num_top: int, extras: Extras) -> "Variant":
        """The one that a dispatch with these extras needs."""
        width = 0 if extras.edits is None else extras.edits.tokens.shape[1]
        return cls(num_top, width, extras.mask is not None, extras.logits is not None)

    def __str__(self) -> str:
        parts = [f"{self.num_top} likely tokens"] if self.num_top else []
        parts += [f"{self.edit_width} touched tokens"] if self.edit_width else []
        parts += ["a mask"] if self.has_mask else []
        parts += ["logits of the host"] if self.has_logits else []
        return f" with {', '.join(parts)}" if parts else ""


PLAIN = Variant()


class Needs(NamedTuple):
    """What rows of some sampling parameters need of the programs."""

    num_top: int = 0
    prefill_widths: tuple[int, ...] = (0,)
    """Rooms for touched tokens that their prefills may need; 0: none."""
    decode_widths: tuple[int, ...] = (0,)
    has_mask: bool = False
    has_logits: bool = False
    has_host: bool = False
    """Whether the host has a say in every token."""
    prompt_top: int = 0
    """Most likely tokens reported at each prompt token; 0: prompts are not scored."""

    @property
    def can_speculate(self) -> bool:
        """Whether proposals can be checked for such rows, if for any."""
        return not self.has_host and self.decode_widths == (0,)

    def join(self, other: "Needs") -> "Needs":
        """What a dispatch needs that has rows of both."""
        return Needs(
            max(self.num_top, other.num_top),
            _join_widths(self.prefill_widths, other.prefill_widths),
            _join_widths(self.decode_widths, other.decode_widths),
            self.has_mask or other.has_mask,
            self.has_logits or other.has_logits,
            self.has_host or other.has_host,
            max(self.prompt_top, other.prompt_top),
        )


PLAIN_NEEDS = Needs()


def needs_of(request: LLMRequest, max_model_len: int, burst: int) -> Needs:
    """What rows like this request's need, whatever their prompts are."""
    params, rules = request.params, request.rules
    prompt_top = params.prompt_logprobs
    prefill_widths = decode_widths = (0,)
    if rules.has_edits:
        touched = len(rules.bias_tokens)
        most = touched + (min(params.max_tokens, max_model_len) if rules.has_penalties else 0)
        most = touched + max_model_len if rules.repetition != 1.0 else most
        num_bad = len(rules.bad_words)
        prefill_widths = _widths(touched, most, num_bad)
        decode_widths = _widths(touched + burst, most + burst, num_bad)
    return Needs(
        num_top=top_bucket(params.num_top),
        prefill_widths=prefill_widths,
        decode_widths=decode_widths,
        has_mask=rules.allowed is not None or rules.guide is not None,
        has_logits=bool(rules.processors),
        has_host=params.needs_host,
        prompt_top=0 if prompt_top is None else top_bucket(max(prompt_top, 1)),
    )


def programs_for(shapes: Shapes, needs: Sequence[Needs]) -> list[ProgramKey]:
    """The programs of all rows' needs, of each alone and of all together; none twice."""
    together = needs[0]
    for each in needs[1:]:
        together = together.join(each)
    keys = [key for each in (*needs, together) for key in _programs_of(shapes, each)]
    return list(dict.fromkeys([*keys, *_programs_of_stages(shapes), COPY]))


def _programs_of(shapes: Shapes, needs: Needs) -> Iterator[ProgramKey]:
    prefills = [_variant(needs, width) for width in needs.prefill_widths]
    decodes = [_variant(needs, width) for width in needs.decode_widths]
    for size in shapes.prefill_tokens:
        if needs.has_host:
            yield ProgramKey("prefill logits", size, PLAIN)
        else:
            yield from (ProgramKey("prefill", size, variant) for variant in prefills)
    for size in shapes.decode_rows:
        if needs.has_host:
            yield ProgramKey("decode logits", size, PLAIN)
            yield from (ProgramKey("choose", size, variant) for variant in decodes)
        else:
            yield from (ProgramKey("decode", size, variant) for variant in decodes)
    if needs.can_speculate:
        variant = _variant(needs, 0)
        yield from (ProgramKey("speculate", size, variant) for size in shapes.speculative_rows)
        if shapes.has_draft and shapes.speculative_rows:
            yield from (ProgramKey("draft prefill", size, PLAIN) for size in shapes.prefill_tokens)
    if needs.has_host:
        yield from (ProgramKey("choose", shapes.prefill_rows, variant) for variant in prefills)
    if needs.prompt_top:
        variant = Variant(num_top=needs.prompt_top)
        yield from (ProgramKey("prompt scores", size, variant) for size in shapes.prefill_tokens)


def _programs_of_stages(shapes: Shapes) -> Iterator[ProgramKey]:
    for number in map(StageNumber, range(shapes.num_stages - 1)):
        yield from (ProgramKey(ENTER_PREFILL, size, number) for size in shapes.prefill_tokens)
        yield from (ProgramKey(ENTER_DECODE, size, number) for size in shapes.decode_rows)
        yield COPY._replace(variant=number)


def _variant(needs: Needs, width: int) -> Variant:
    return Variant(needs.num_top, width, needs.has_mask, needs.has_logits)


def _widths(least: int, most: int, num_bad: int) -> tuple[int, ...]:
    """The buckets of so many touched tokens, with room for so many bad words."""
    first, last = (
        pick_bucket(EDIT_BUCKETS, max(count, num_bad * EDITS_PER_BAD_WORD)) for count in (least, most)
    )
    return tuple(size for size in EDIT_BUCKETS if first <= size <= last)


def _join_widths(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The widths of dispatches with rows of both: none below the larger of the least ones.

    e.g. (0,) and (64, 256) -> (64, 256)
    """
    least = max(min(first), min(second))
    return tuple(sorted({width for width in (*first, *second) if width >= least}))
