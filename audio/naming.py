"""Names of inputs in error texts: no secrets, no binary content, one line."""

import os

MAX_NAME_CHARS = 240


def display_name(source: object) -> str:
    """A path or address as error texts show it: a URL without user, password, query and fragment."""
    text = os.fsdecode(source) if isinstance(source, bytes | os.PathLike) else str(source)
    if "://" in text:
        text = _without_secrets(text)
    text = "".join(char if char.isprintable() else "?" for char in text)
    if len(text) > MAX_NAME_CHARS:
        half = MAX_NAME_CHARS // 2
        text = f"{text[:half]}...{text[-half:]}"
    return text


def _without_secrets(url: str) -> str:
    scheme, _, rest = url.partition("://")
    for mark in "?#":
        rest = rest.partition(mark)[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
