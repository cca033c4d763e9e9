"""The sums behind the tables. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

MICROS = 1e6


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system beside the base. CPU in microseconds per unit; ratios have no unit.

    `ratio` is the ratio of the medians; `low` and `high` are quartiles of the ratios of single repetitions,
    in each of which both systems ran within seconds of each other.
    """

    median: float
    fastest: float
    slowest: float
    ratio: float
    low: float
    high: float


def cpu_per_unit(before: float, after: float, units: int) -> float:
    """Microseconds per unit, from two readings of a CPU clock in seconds. Raises ValueError without units."""
    if units < 1:
        raise ValueError("nothing was done between the two readings")
    return (after - before) * MICROS / units


def compare(values: Sequence[float], base: Sequence[float]) -> Comparison:
    """`values` beside `base`, repetition by repetition. Raises ValueError where their numbers differ."""
    paired = [value / other for value, other in zip(values, base, strict=True)]
    # One repetition has no quartiles: its ratio is both.
    low, _, high = quantiles(paired * (2 if len(paired) == 1 else 1), method="inclusive")
    return Comparison(
        median=median(values),
        fastest=min(values),
        slowest=max(values),
        ratio=median(values) / median(base),
        low=low,
        high=high,
    )
