"""Subsets: a contiguous range of a dataset's samples."""

from __future__ import annotations

from fractions import Fraction

from attrs import evolve, frozen


@frozen
class Subset:
    """A range of samples: first an absolute one, then a relative one of what that leaves."""

    first: int = 0
    end: int | None = None  # None: the end of the dataset
    low: Fraction = Fraction(0)  # of the samples [first, end)
    high: Fraction = Fraction(1)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of a dataset."""
        return self == WHOLE

    @property
    def is_absolute(self) -> bool:
        """Whether it says numbers of samples."""
        return self.first != 0 or self.end is not None

    @property
    def is_relative(self) -> bool:
        """Whether it says percentages."""
        return self.low != 0 or self.high != 1

    def within(self, inner: Subset | None) -> Subset:
        """Return this relative range, applied to what `inner` leaves."""
        inner = inner or WHOLE
        span = inner.high - inner.low
        return evolve(inner, low=inner.low + self.low * span, high=inner.low + self.high * span)

    def bounds(self, num_samples: int) -> tuple[int, int]:
        """Return the range in a dataset of `num_samples`. ValueError if it does not have it."""
        end = num_samples if self.end is None else self.end
        if end > num_samples or self.first > end:
            raise ValueError(f"the range {self} goes beyond the dataset")
        total = end - self.first
        return self.first + int(total * self.low), self.first + int(total * self.high)

    def __str__(self) -> str:
        absolute = f"[{self.first}:{'end' if self.end is None else self.end}]"
        relative = f"[{percent(self.low)}:{percent(self.high)}]"
        return (absolute if self.is_absolute else "") + (relative if self.is_relative else "")


WHOLE = Subset()


def percent(fraction: Fraction) -> str:
    """Return a finite decimal fraction as exact percents: Fraction(1, 8) -> `12.5%`."""
    value, digits = fraction * 100, 0
    while value.denominator > 1:
        value, digits = value * 10, digits + 1
    text = str(value.numerator).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}%" if digits else f"{text}%"
