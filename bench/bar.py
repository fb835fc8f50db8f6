"""Bar: one claim with the values that meet it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """One claim: a value of a result file between `low` and `high`, both included; None is no bound."""

    group: str
    title: str
    result: str  # bench/results/RESULT.json, written by `command`
    value: str  # the key among its values
    command: str
    low: float | None = None
    high: float | None = None
    unit: str = ""

    @property
    def bar(self) -> str:
        """The bar in words."""
        if self.low is not None and self.high is not None:
            same = self.low == self.high
            return f"= {number(self.low)}" if same else f"{number(self.low)} to {number(self.high)}"
        if self.low is not None:
            return f">= {number(self.low)}"
        return f"<= {number(self.high)}" if self.high is not None else "shown"

    def met_by(self, measured: float) -> bool:
        """Whether a measured value lies within the bar."""
        return (self.low is None or measured >= self.low) and (self.high is None or measured <= self.high)


def rows(group: str, result: str, command: str, *rows: tuple) -> tuple[Bar, ...]:
    """Bars that one command measures: (title, value, low, high, unit) each."""
    return tuple(Bar(group, title, result, value, command, low, high, unit) for title, value, low, high, unit in rows)


def number(value: float) -> str:
    """Up to four significant digits; whether a bar is met is decided on the unrounded value."""
    return f"{value:.4g}"
