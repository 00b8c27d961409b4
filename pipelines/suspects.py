"""Who ended the process: what the journals of dead attempts say of a chunk's rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.engines import RowError
from headrace.pipelines.journal import Attempt

# Deaths that nobody saw (kill -9, a power cut, out of memory) before a row that was there each time is
# suspected, and before one that was alone in the engine each time is taken for the cause.
_UNSEEN_TO_SUSPECT = 3
_UNSEEN_TO_CONDEMN = 3
# So many suspects are tried one by one; more of them in groups first.
_MAX_SINGLES = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What is known of a chunk's rows before it is tried again."""

    suspects: Mapping[int, int] = field(default_factory=dict)
    """Rows that may have ended a process, each with the number of ends that it was there at."""
    condemned: Mapping[int, RowError] = field(default_factory=dict)
    """Rows that did, alone in the engine; they are not submitted again."""
    is_strict: bool = False
    """Whether the suspects are to be tried one by one, however many they are."""


def judge(attempts: Sequence[Attempt], *, strict: bool) -> Verdict:
    """The verdict on the rows of one chunk.

    `strict` holds an end that nobody saw for a row's doing at once: where a runner retries only a few times
    and nobody watches its workers.
    """
    seen: dict[int, int] = {}
    unseen: dict[int, int] = {}
    alone: dict[int, list[str | None]] = {}
    for attempt in attempts:
        for place in attempt.cleared:
            seen.pop(place, None)
            unseen.pop(place, None)
        there = attempt.trial & attempt.in_flight or attempt.in_flight
        counts = unseen if attempt.death is None else seen
        for place in there:
            counts[place] = counts.get(place, 0) + 1
        if len(attempt.trial) == 1:
            for place in there:
                alone.setdefault(place, []).append(attempt.death)
    needed = 1 if strict else _UNSEEN_TO_SUSPECT
    condemned = {place: _error(deaths) for place, deaths in alone.items() if _is_proof(deaths, strict=strict)}
    suspects = dict(seen)
    suspects |= {
        place: seen.get(place, 0) + count
        for place, count in unseen.items()
        if count >= needed or place in alone or place in seen
    }
    return Verdict(
        suspects={place: count for place, count in suspects.items() if place not in condemned},
        condemned=condemned,
        is_strict=strict,
    )


def trials(suspects: Mapping[int, int], *, strict: bool) -> Iterator[tuple[int, ...]]:
    """Groups of suspects to have the engine to themselves one after another, the likeliest first.

    Rows that were there at equally many ends go one by one where they are few. Many go in groups of the
    square root of their number, of which the one that ends the process is tried one by one next time: a
    culprit among n takes about 2 sqrt(n) trials.
    """
    for ends in sorted(set(suspects.values()), reverse=True):
        rows = sorted(place for place, count in suspects.items() if count == ends)
        size = 1 if strict or len(rows) <= _MAX_SINGLES else math.isqrt(len(rows) - 1) + 1
        yield from (tuple(rows[at : at + size]) for at in range(0, len(rows), size))


def _is_proof(deaths: Sequence[str | None], *, strict: bool) -> bool:
    unseen = sum(death is None for death in deaths)
    return unseen < len(deaths) or unseen >= (2 if strict else _UNSEEN_TO_CONDEMN)


def _error(deaths: Sequence[str | None]) -> RowError:
    death = next((each for each in reversed(deaths) if each is not None), None)
    if death == "hung":
        return RowError("hang", "the row hung the engine, alone in it, for longer than row_timeout_s")
    how = f" ({death})" if death else ""
    return RowError("crash", f"the row ended the process that ran it{how}, alone in the engine")
