"""The static shapes that programs are compiled for."""

GROWTH = 4
"""Ratio of neighbouring buckets: a program is compiled for each, and a batch pads up to the next."""


def growing_buckets(smallest: int, largest: int) -> tuple[int, ...]:
    """`smallest` times GROWTH as long as it stays under `largest`, then `largest` itself.

    e.g. (8, 100) -> (8, 32, 100)
    """
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= GROWTH
    return (*sizes, largest)


def pick_bucket(buckets: tuple[int, ...], count: int) -> int:
    """The smallest bucket that holds `count`."""
    for size in buckets:
        if size >= count:
            return size
    raise AssertionError(f"no bucket of {buckets} holds {count}")
