"""How long a recording is, told without decoding it: enough to cut work and to order it."""

import soundfile

from headrace.pipelines.files import is_local, without_query

# Bytes of a second as recordings of speech mostly have them.
_BYTES_PER_S = {"wav": 32_000, "aiff": 32_000, "aif": 32_000, "au": 32_000, "flac": 16_000}
_BYTES_PER_S |= {"opus": 4_000, "ogg": 8_000, "oga": 8_000, "webm": 8_000, "mp4": 60_000, "mov": 60_000}
_OTHER_BYTES_PER_S = 12_000
# Formats whose header tells the length.
_TOLD = ("wav", "flac", "aiff", "aif", "au")


def estimate_seconds(path: str, size: int | None) -> float:
    """Seconds of a recording: by the header of a wav or flac file that is here, else by its size in bytes."""
    ending = without_query(path).lower().rpartition(".")[2]
    if is_local(path) and ending in _TOLD:
        try:
            return soundfile.info(path).duration
        except (OSError, RuntimeError):  # no recording: the row will say so
            return 0.0
    return (size or 0) / _BYTES_PER_S.get(ending, _OTHER_BYTES_PER_S)
