"""The static shapes that programs are compiled for."""


def power_of_two_buckets(smallest: int, largest: int) -> tuple[int, ...]:
    """`smallest` doubled as long as it stays under `largest`, then `largest` itself.

    e.g. (8, 100) -> (8, 16, 32, 64, 100)
    """
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


def pick_bucket(buckets: tuple[int, ...], count: int) -> int:
    """The smallest bucket that holds `count`."""
    for size in buckets:
        if size >= count:
            return size
    raise AssertionError(f"no bucket of {buckets} holds {count}")
