"""What can be wrong with a run, apart from its rows."""

from headrace.audio import HeadraceError


class InputError(HeadraceError, ValueError):
    """An option or an input that is wrong, found before the run starts."""


class OutputError(HeadraceError, ValueError):
    """An output directory that this run must not write to, found before the run starts."""


class RunError(HeadraceError, RuntimeError):
    """A run that broke off; what was committed stays, and the same command goes on from there."""
