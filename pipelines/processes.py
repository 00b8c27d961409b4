"""Processes of this machine: who started whom, and what an exit code says."""

import signal
from contextlib import suppress
from pathlib import Path

# Ends that come from outside, out of memory included: no row need have done it.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def descendants(pid: int) -> list[int]:
    """Processes that `pid` has started, and those that they have; none where there is no /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            # pid (name) state parent ...: the name may hold spaces and parentheses.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def death_of(code: int) -> tuple[str, str | None]:
    """How a process ended, in words, and what of it the journal notes: None where it came from outside.

    `code` is negative for a signal, as `subprocess` gives it, or 128 and more, as a shell does.
    """
    number = -code if code < 0 else code - 128
    try:
        which = signal.Signals(number)
    except ValueError:
        return f"ended with exit code {code}", f"exit code {code}"
    return f"was ended by {which.name}", None if which in _FROM_OUTSIDE else which.name
