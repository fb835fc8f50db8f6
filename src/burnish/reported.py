"""Report, the record a reader is shown: quantities with where each is from, and what happened in the run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from burnish.records import Evaluation, Frozen, Pass, Picture, Sample, SavedFile, Step, Table, Units
from burnish.verified import Verified

Source = Literal["predicted", "measured", "published"]
SOURCES: tuple[Source, ...] = ("measured", "predicted", "published")  # in the order a headline prefers them


class Row(Frozen):
    """One quantity as predicted, measured and published; None where nobody said. `error_percent` is prediction against
    measurement, relative to the measurement."""

    key: str
    label: str
    unit: str
    predicted: float | None = None
    measured: float | None = None
    published: float | None = None
    error_percent: float | None = None


class Figure(Frozen):
    """One headline number. `source` says where it is from, `note` what it is set against."""

    label: str
    value: float
    unit: str
    source: Source
    note: str = ""


class Report(Frozen):
    """Everything a reader of a run is shown. Sizes are bytes, times seconds, losses nats per label."""

    recipe: str
    status: Literal["planned", "partly", "trained", "done"]
    started: str = ""
    total_seconds: float | None = None
    planned_machine: str = ""
    machine: dict[str, Any] = Field(default_factory=dict)
    mapping: dict[str, int | str] = Field(default_factory=dict)
    batch: dict[str, int] = Field(default_factory=dict)
    capacity: float | None = None
    fits: bool | None = None
    figures: tuple[Figure, ...] = ()
    rows: tuple[Row, ...] = ()
    passes: tuple[Pass, ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)
    curve: tuple[Step, ...] = ()
    evals: tuple[Evaluation, ...] = ()
    quality: dict[str, float | str] = Field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    units: Units = Units()
    files: tuple[SavedFile, ...] = ()
    checks: dict[str, bool | int | float | str] = Field(default_factory=dict)
    verified: Verified | None = None
    recipe_yaml: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
