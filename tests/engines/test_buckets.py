"""Shape buckets hold every count up to the largest."""

import pytest

from headrace.engines.buckets import growing_buckets, pick_bucket


@pytest.mark.parametrize(("smallest", "largest"), [(8, 100), (8, 8), (2, 2), (128, 1024), (8, 9)])
def test_every_count_fits_a_bucket_and_the_largest_is_the_last(smallest, largest):
    buckets = growing_buckets(smallest, largest)
    assert buckets[-1] == largest
    assert list(buckets) == sorted(set(buckets))
    for count in range(1, largest + 1):
        assert pick_bucket(buckets, count) == min(size for size in buckets if size >= count)
