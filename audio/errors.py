"""The root of the one exception tree, and the errors of audio inputs."""


class HeadraceError(Exception):
    """Every error that headrace raises on purpose; its text is one line that a person can act on."""


class AudioError(HeadraceError, ValueError):
    """A recording that cannot be read.

    `kind` is a short machine word for counters; it never contains a part of the input:
    `source` (not a path, URL, bytes, file object, array or mapping), `not_found`, `unreadable`, `fetch`,
    `too_large`, `empty` (no samples), `undecodable`, `no_audio` (a video or image without an audio track),
    `raw` (samples without a header), `archive`, `non_finite`, `shape`, `sampling_rate`, `channel`.
    """

    def __init__(self, message: str, *, kind: str = "undecodable") -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self):
        return _rebuild, (str(self), self.kind)


def _rebuild(message: str, kind: str) -> AudioError:
    return AudioError(message, kind=kind)
