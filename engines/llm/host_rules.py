"""Rules that only the host can follow: guides and logits processors, one token at a time.

The mask of a guide follows from the tokens that a row has, so that it is made while the device computes the
logits; a processor waits for them. A row whose rule fails gets an error; the others are not touched.
"""

from collections.abc import Sequence as Collection

import jax
import numpy as np

from headrace.engines.errors import RequestError, RowError
from headrace.engines.llm.guided import GuideState, fill_mask
from headrace.engines.llm.logit_edits import Arrays, Extras, all_allowed
from headrace.engines.llm.processors import process_logits
from headrace.engines.llm.request import Sequence


def need_host(sequences: Collection[Sequence]) -> bool:
    """Whether the host has a say in the next token of any row."""
    return any(sequence.request.params.needs_host for sequence in sequences)


def add_host_rules(
    extras: Extras, sequences: Collection[Sequence], logits: jax.Array, vocab_size: int
) -> Extras:
    """The extras of a dispatch with what guides and processors say about the logits [R, V] being computed."""
    num_rows = logits.shape[0]
    extras = extras._replace(mask=_add_guides(extras.mask, sequences, num_rows, vocab_size))
    return extras._replace(logits=_process(sequences, logits))


def _add_guides(
    mask: Arrays | None, sequences: Collection[Sequence], num_rows: int, vocab_size: int
) -> Arrays | None:
    if all(sequence.request.rules.guide is None for sequence in sequences):
        return mask
    matchers = []
    for row, sequence in enumerate(sequences):
        start = sequence.request.rules.guide
        if start is None or sequence.error is not None:
            continue
        sequence.guide = sequence.guide or GuideState(start)
        matcher = sequence.guide.follow(sequence.past_outputs)
        if matcher.is_error():
            sequence.error = RowError(
                "guide", f"the guide went no further: {_first_line(matcher.get_error())}"
            )
        else:
            matchers.append((matcher, row))
    mask = all_allowed(num_rows, vocab_size) if mask is None else np.asarray(mask)
    if matchers:
        fill_mask(mask, matchers)
    return mask


def _process(sequences: Collection[Sequence], logits: jax.Array) -> np.ndarray | None:
    """The logits of all rows where a row has processors, else None."""
    if not any(sequence.request.rules.processors for sequence in sequences):
        return None
    changed = np.array(jax.device_get(logits))
    for row, sequence in enumerate(sequences):
        processors = sequence.request.rules.processors
        if not processors or sequence.error is not None:
            continue
        prompt = np.asarray(sequence.request.prompt_token_ids, np.int32)
        outputs = np.asarray(sequence.past_outputs, np.int32)
        try:
            changed[row] = process_logits(processors, prompt, outputs, changed[row].copy())
        except RequestError as error:
            sequence.error = RowError.of(error)
    return changed


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
