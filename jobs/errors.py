"""The one error of the command line itself."""


class UsageError(ValueError):
    """Arguments that cannot be understood; its text is one line that says what to do.

    Not a HeadraceError: importing that one loads the audio room, and with it JAX, before `--help` is shown.
    """
