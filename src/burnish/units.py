"""Quantities as text: one table from a unit to how a person reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

MISSING = "\u2013"  # an en dash: no value
MINUS = "\u2212"  # as wide as a plus, so that signed columns align
_SPACE = "\u00a0"  # no line breaks between a number and its unit


def _significant(value: float, digits: int = 3) -> str:
    """`value` with about `digits` significant digits and grouped thousands, never in exponent form above 1e-4."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if size < 1e-4:
        return f"{value:.{digits - 1}e}"
    places = digits - 1
    while size < 1:
        size *= 10
        places += 1
    while size >= 10:
        size /= 10
        places -= 1
    return f"{value:.{places}f}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> tuple[str, str]:
    """The first unit of `steps` (largest first) in which `value` is at least one, else the last one."""
    for size, unit in steps:
        if abs(value) >= size:
            return _significant(value / size), unit
    size, unit = steps[-1]
    return _significant(value / size), unit


def _bytes(value: float) -> tuple[str, str]:
    if abs(value) < 2**10:
        return f"{value:,.0f}", "B"
    return _scaled(value, ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")))


def _flops(value: float) -> tuple[str, str]:
    return _scaled(
        value, ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP"))
    )


def _short_count(value: float) -> tuple[str, str]:
    return _scaled(value, ((1e9, "billion"), (1e6, "million"), (1, "")))


def _seconds(value: float) -> tuple[str, str]:
    if abs(value) >= 60:
        minutes, seconds = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        long, short, unit = (hours, minutes, ("h", "min")) if hours else (minutes, seconds, ("min", "s"))
        return f"{long}{_SPACE}{unit[0]} {short}", unit[1]
    return _scaled(value, ((1, "s"), (1e-3, "ms")))


_FORMATS: dict[str, Callable[[float], tuple[str, str]]] = {
    "bytes": _bytes,
    "FLOPs": _flops,
    "seconds": _seconds,
    "tokens/s": lambda value: (_significant(value), "tokens/s"),
    "fraction": lambda value: (_significant(100 * value), "%"),
    "percent": lambda value: (_significant(value), "%"),
    "count": lambda value: (f"{value:,.0f}", ""),
    "short count": _short_count,
    "bits per byte": lambda value: (f"{value:.3f}", "bits per byte"),
    "": lambda value: (_significant(value), ""),
}


def parts(value: float, unit: str) -> tuple[str, str]:
    """`value` as (number, unit) for a reader: bytes become KiB, MiB or GiB, long times minutes."""
    form = _FORMATS.get(unit)
    number, shown = form(value) if form else (_significant(value), unit)
    return number.replace("-", MINUS), shown


def show(value: float | None, unit: str) -> str:
    """`value` and its unit on one line, or a dash when there is no value."""
    if value is None:
        return MISSING
    number, shown = parts(value, unit)
    return f"{number}{_SPACE}{shown}" if shown else number


def counted(number: int, thing: str, plural: str = "s") -> str:
    """A number of things: `1 row`, `2,048 rows`."""
    return f"{number:,} {thing}{'' if number == 1 else plural}"


def signed_percent(value: float | None) -> str:
    """A relative error such as `+1.3 %`; exactly zero is `exact`, no value a dash."""
    if value is None:
        return MISSING
    if value == 0:
        return "exact"
    if abs(value) < 0.05:
        return f"< 0.05{_SPACE}%"
    return f"{value:+,.1f}{_SPACE}%".replace("-", MINUS)


def date(iso: str) -> str:
    """An ISO time as `3 March 2026, 14:05`; text that is no ISO time is returned as it is."""
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{when.day} {when:%B %Y, %H:%M}"
