"""A run as its output directory shows it, running or not: no pipeline, and nothing but reads."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.engines.ratios import ratios
from headrace.pipelines.commit import Footer, input_rows, run_directory
from headrace.pipelines.committed import committed_footers
from headrace.pipelines.errors import InputError
from headrace.pipelines.files import exists, normalise
from headrace.pipelines.heartbeat import STALE_S, read_heartbeat
from headrace.pipelines.metrics import add_up, engine_counters
from headrace.pipelines.output_directory import is_claimed
from headrace.pipelines.run_record import RunRecord, read_record

State = Literal["done", "running", "stalled", "broken", "stopped"]

# A run is stalled where nothing was committed for this many times as long as its parts take.
_STALL_FACTOR = 5
_MIN_STALL_S = 120.0
_RATE_WINDOW_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """What there is to see of a run."""

    output: str
    """The directory."""
    record: RunRecord
    """run.json."""
    footers: Sequence[Footer]
    """Footers of the committed parts, in their order."""
    is_claimed: bool | None
    """Whether a process has the output; None where that cannot be told from here."""
    heartbeat: Mapping[str, Any] | None
    """What the launcher wrote last of itself and of the progress."""
    has_success: bool
    """Whether the run has ended with every row."""
    now: float
    """When it was looked at, in seconds since 1970."""

    @property
    def rows_total(self) -> int:
        """Rows of the input, as it was listed by the last launch."""
        return sum(
            shard.rows if shard.is_table else sum(not file.gone for file in shard.files)
            for shard in self.record.shards
        )

    @property
    def rows(self) -> int:
        """Rows of the input whose results are committed."""
        return sum(input_rows(footer) for footer in self.footers)

    @property
    def rows_failed(self) -> int:
        """Committed rows whose result is an error."""
        return sum(footer.rows_failed for footer in self.footers)

    @property
    def errors(self) -> dict[str, int]:
        """Failed rows by the kind of error."""
        return add_up(footer.errors for footer in self.footers)

    @property
    def units(self) -> float:
        """Tokens, or seconds of audio, that are committed."""
        return math.fsum(footer.units for footer in self.footers)

    @property
    def ratios(self) -> dict[str, float]:
        """Ratios of the engines' counters, such as speculation_acceptance_rate."""
        return ratios(engine_counters(self.footers))

    @property
    def unit(self) -> str:
        """What the units are."""
        return "tokens" if self.record.job == "generate" else "audio seconds"

    @property
    def parts_total(self) -> int:
        """Parts of the whole run, as the last launch counted them."""
        launch = self.record.launches[-1] if self.record.launches else {}
        return max(int(launch.get("parts_reused", 0)) + int(launch.get("parts_to_do", 0)), len(self.footers))

    @property
    def started_at(self) -> float:
        """Start of the last launch, in seconds since 1970."""
        return float(self.record.launches[-1]["started_at"]) if self.record.launches else self.now

    @property
    def new_footers(self) -> list[Footer]:
        """Footers of the parts that the last launch has committed."""
        return [footer for footer in self.footers if footer.finished_at >= self.started_at]

    @property
    def rows_in_flight(self) -> int:
        """Rows that are finished and not committed, as far as the launcher sees them."""
        beat = self.heartbeat
        if beat is None or beat.get("state") != "running" or self.state not in ("running", "stalled"):
            return 0
        return max(int(beat.get("rows_done", 0)) - self.rows, 0)

    @property
    def idle_s(self) -> float:
        """Seconds since the last commit or finished row, or since the launch where there was none."""
        last = max((footer.finished_at for footer in self.footers), default=0.0)
        moved = float(self.heartbeat.get("moved_at", 0.0)) if self.heartbeat is not None else 0.0
        return max(self.now - max(last, moved, self.started_at), 0.0)

    @property
    def is_alive(self) -> bool | None:
        """Whether a launcher is at work; None where that cannot be told."""
        if self.is_claimed is not None or self.heartbeat is None:
            return self.is_claimed
        age_s = self.now - float(self.heartbeat.get("at", 0.0))
        return self.heartbeat.get("state") == "running" and age_s < STALE_S

    @property
    def usual_part_s(self) -> float:
        """Seconds that the slowest part took so far; 0 where there is none."""
        return max((footer.wall_s for footer in self.footers), default=0.0)

    @property
    def state(self) -> State:
        """done, running, stalled (no part for far longer than parts take), broken, or stopped (killed)."""
        if self.record.state == "done" and self.has_success:
            return "done"
        if self.record.state == "broken":
            return "broken"
        if self.is_alive is False:
            return "stopped"
        if self.footers and self.idle_s > max(_MIN_STALL_S, _STALL_FACTOR * self.usual_part_s):
            return "stalled"
        return "running"

    @property
    def units_per_s(self) -> float:
        """Units a second: of the whole last launch where it is done, else over its last ten minutes."""
        launch = self.record.launches[-1] if self.record.launches else {}
        if "wall_s" in launch:
            return launch["units"] / launch["wall_s"] if launch["wall_s"] > 0 else 0.0
        return self._rate([footer.units for footer in self._recent()])

    @property
    def eta_s(self) -> float | None:
        """Seconds until the end at the present rate of rows; None while that is unknown, or over."""
        rate = self._rate([float(input_rows(footer)) for footer in self._recent()])
        if self.state not in ("running", "stalled") or rate <= 0:
            return None
        return max(self.rows_total - self.rows, 0) / rate

    def _recent(self) -> list[Footer]:
        return [each for each in self.new_footers if each.finished_at >= self.now - _RATE_WINDOW_S]

    def _rate(self, amounts: Sequence[float]) -> float:
        passed_s = min(self.now - self.started_at, _RATE_WINDOW_S)
        return math.fsum(amounts) / passed_s if passed_s > 0 else 0.0


def read_run(output: str) -> RunView:
    """The run in a directory.

    Raises:
      InputError: there is none.
      OutputError: it is one that this version does not understand.
    """
    output = normalise(output)
    record = read_record(output)
    if record is None:
        raise InputError(f"{output} holds no run of headrace: give the --output of one")
    return RunView(
        output=output,
        record=record,
        footers=tuple(committed_footers(output).values()),
        is_claimed=is_claimed(output),
        heartbeat=read_heartbeat(output),
        has_success=exists(run_directory(output, "_SUCCESS")),
        now=time.time(),
    )


def as_json(view: RunView) -> str:
    """The figures of a run as one JSON object."""
    values: Mapping[str, Any] = {
        "output": view.output,
        "job": view.record.job,
        "model": view.record.model.spec,
        "state": view.state,
        "rows": view.rows,
        "rows_in_flight": view.rows_in_flight,
        "rows_total": view.rows_total,
        "rows_failed": view.rows_failed,
        "errors": view.errors,
        "parts": len(view.footers),
        "parts_total": view.parts_total,
        "unit": view.unit,
        "units": view.units,
        "units_per_s": view.units_per_s,
        "ratios": view.ratios,
        "eta_s": view.eta_s,
        "idle_s": view.idle_s,
    }
    return json.dumps(values, indent=1)
