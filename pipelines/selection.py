"""Which rows of the input a run takes: all of them, those of a condition, the first so many, or a sample.

What was taken of a shard is settled when it is first planned, and stays when the input grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int

from headrace.pipelines.config import RunConfig
from headrace.pipelines.errors import InputError, OutputError
from headrace.pipelines.fingerprint import digest
from headrace.pipelines.row_filter import matching_rows, read_condition
from headrace.pipelines.scans import TableScan
from headrace.pipelines.shards import Shard

INPUT_OPTIONS = (
    "inputs",
    "dataset",
    "dataset_config",
    "split",
    "stream_dataset",
    "limit",
    "where",
    "shuffle_seed",
)
"""Options that say which rows a run has: there are none where rows come from elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """Shards with what is taken of them."""

    shards: list[Shard]
    """The shards, the old ones first."""
    picks: Mapping[str, Int[np.ndarray, " taken"]] = field(default_factory=dict)
    """The rows that are taken, for the tables of which it is not the first so many, by source."""


def select_rows(
    config: RunConfig,
    shards: Sequence[Shard],
    num_old: int,
    scans: Mapping[str, TableScan],
    paths: Mapping[str, str],
) -> Selected:
    """Takes rows of the shards that are not settled, of which the first `num_old` are of earlier launches.

    Raises:
      InputError: the condition does not fit a table, or the input has no tables.
      OutputError: a table that was begun does not hold the rows any more that were taken.
    """
    if config.where is None and config.limit is None:
        return Selected(shards=list(shards))
    rows = {shard.index: _candidates(config, shard, scans, paths) for shard in shards}
    open_shards = [shard for shard in shards if not _is_settled(shard, num_old)]
    counts = _share_limit(config, [s for s in shards if s not in open_shards], open_shards, rows)
    taken = [
        _with_taken(shard, rows[shard.index], counts[shard.index], config) if shard.index in counts else shard
        for shard in shards
    ]
    kept = [shard for shard in taken if shard.is_table or shard.files]
    picks = {
        shard.files[0].source: _picked(config, shard, rows[shard.index])
        for shard in kept
        if _is_scattered(config) and shard.is_table and shard.files[0].source in scans
    }
    return Selected(shards=[replace(shard, index=at) for at, shard in enumerate(kept)], picks=picks)


def _is_settled(shard: Shard, num_old: int) -> bool:
    if not shard.is_table:
        return shard.index < num_old
    return shard.taken is not None or not shard.rows


def _is_scattered(config: RunConfig) -> bool:
    """Whether the rows that are taken of a table need not be its first."""
    return config.where is not None or config.shuffle_seed is not None


def _candidates(
    config: RunConfig, shard: Shard, scans: Mapping[str, TableScan], paths: Mapping[str, str]
) -> Int[np.ndarray, " rows"]:
    """Rows of a shard that may be taken: those of a table that its condition is true of, or all."""
    if config.where is not None and not shard.is_table:
        raise InputError("where looks at columns of tables, and recordings have none: leave it out")
    source = shard.files[0].source
    if config.where is None or source not in scans:
        return np.arange((shard.table_rows or 0) if shard.is_table else len(shard.files))
    return matching_rows(paths[source], scans[source], read_condition(config.where))


def _share_limit(
    config: RunConfig, settled: Sequence[Shard], left: Sequence[Shard], rows: Mapping[int, np.ndarray]
) -> dict[int, int]:
    """How many rows are taken of each shard that is left."""
    counts = {shard.index: len(rows[shard.index]) for shard in left}
    if config.limit is None:
        return counts
    room = max(config.limit - sum(shard.rows for shard in settled), 0)
    if config.shuffle_seed is None:
        for index, count in counts.items():
            counts[index] = min(count, room)
            room -= counts[index]
        return counts
    keys = [_keys(config.shuffle_seed, shard)[rows[shard.index]] for shard in left]
    owners = np.repeat(list(counts), list(counts.values()))
    chosen = owners[np.argsort(np.concatenate([*keys, np.zeros(0)]), kind="stable")[:room]]
    return {index: int(np.count_nonzero(chosen == index)) for index in counts}


def _keys(seed: int, shard: Shard) -> Float[np.ndarray, " rows"]:
    """A random number for each row of a shard, which depends on the seed and the row's own place alone."""
    if shard.is_table:
        rng = np.random.default_rng(int(digest([seed, shard.files[0].source]), 16))
        return rng.random(shard.table_rows or 0)
    return np.array([int(digest([seed, file.source]), 16) / 2**64 for file in shard.files])


def _with_taken(shard: Shard, rows: np.ndarray, count: int, config: RunConfig) -> Shard:
    if shard.is_table:
        return replace(shard, taken=count)
    places = rows[:count]
    if config.shuffle_seed is not None:
        places = np.sort(np.argsort(_keys(config.shuffle_seed, shard), kind="stable")[:count])
    return replace(shard, files=tuple(shard.files[place] for place in places))


def _picked(config: RunConfig, shard: Shard, rows: np.ndarray) -> np.ndarray:
    """The rows of a table that are taken, in their order."""
    if len(rows) < shard.rows:
        source = shard.files[0].source
        raise OutputError(
            f"{source} has {len(rows)} rows that fit where, {shard.rows} were planned: "
            "put it back as it was, or choose another output directory"
        )
    if config.shuffle_seed is None or config.limit is None:
        return rows[: shard.rows]
    keys = _keys(config.shuffle_seed, shard)[rows]
    return np.sort(rows[np.argsort(keys, kind="stable")[: shard.rows]])
