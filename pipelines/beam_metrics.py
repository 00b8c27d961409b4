"""Beam metrics of our namespace: counters and distributions, from the bundle's own thread."""

from apache_beam.metrics.metric import Metrics

NAMESPACE = "headrace"


def increase(name: str, amount: int | float) -> None:
    """Adds to a counter; seconds are counted in thousandths, since Beam's counters are whole numbers.

    A counter that is increased in any thread but the bundle's is lost without a word.
    """
    if name.endswith(("_s", "_seconds")):
        name = f"{name.removesuffix('_seconds').removesuffix('_s')}_ms"
        amount *= 1000
    Metrics.counter(NAMESPACE, name).inc(round(amount))


def observe(name: str, seconds: float) -> None:
    """Adds a time to a distribution of whole milliseconds; `x_s` becomes `x_ms`."""
    Metrics.distribution(NAMESPACE, f"{name.removesuffix('_s')}_ms").update(round(seconds * 1000))
