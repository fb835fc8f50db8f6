"""Columns: many records of one kind as one record whose numbers are arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def columns(records: Sequence[T]) -> T:
    """One record of the same class: numbers become arrays, records inside become records of arrays, and what is neither
    stays that of the first."""
    first: Any = records[0]
    made = {}
    for field in fields(first):
        values = [getattr(record, field.name) for record in records]
        if is_dataclass(values[0]):
            made[field.name] = columns(values)
        elif isinstance(values[0], int | float | np.number) and not isinstance(values[0], bool):
            made[field.name] = np.array(values)
        else:
            made[field.name] = values[0]
    return type(first)(**made)
