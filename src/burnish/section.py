"""Section: settings owned by the thing they configure; frozen, and an unknown key names the nearest known one."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from burnish.errors import UserError, nearest


class Section(BaseModel):
    """Base of every group of settings in a recipe and of every technique's `Config`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        """True is no number, though Python counts it as 1."""
        if isinstance(value, bool) and _is_number(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError("expected a number")
        return value


def _is_number(annotation: Any) -> bool:
    """Whether a field holds a number, or a number or nothing."""
    return not {int, float}.isdisjoint({annotation, *get_args(annotation)}) and get_origin(annotation) is not tuple


def section_at(kind: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    """The settings class that owns the key `path` inside `kind`."""
    for key in path:
        field = kind.model_fields.get(key)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        kind = inner
    return kind


def explain(error: ValidationError, kind: type[BaseModel], where: str) -> UserError:
    """One line for the first thing that is wrong with settings of class `kind` read from `where`; all missing keys at once."""
    first = error.errors()[0]
    missing = [".".join(map(str, e["loc"])) for e in error.errors() if e["type"] == "missing"]
    others = len(error.errors()) - (len(missing) if first["type"] == "missing" else 1)
    path = tuple(str(part) for part in first["loc"])
    name = ".".join(path) or kind.__name__.lower()
    if first["type"] == "extra_forbidden":
        owner = section_at(kind, path[:-1])
        message = f"unknown key; {nearest(path[-1], owner.model_fields)}"
    elif first["type"] == "missing":
        name = ", ".join(missing)
        message = "missing; it has no default" if len(missing) == 1 else "missing; they have no defaults"
    elif first["type"] == "model_type":
        message = f"expected settings, some of {', '.join(section_at(kind, path).model_fields)}{_given(first['input'])}"
        name = ".".join(path)
    else:
        message = f"{first['msg'].removeprefix('Value error, ')}{_given(first['input'])}"
    more = f" (and {others} more)" if others else ""
    return UserError(": ".join(part for part in (where, name, f"{message}{more}") if part))


def _given(value: Any) -> str:
    text = repr(value)
    return "" if isinstance(value, dict | BaseModel) or len(text) > 60 else f", not {text}"


def with_changes(
    values: dict[str, Any], changes: Mapping[str, Any], where: str, by_name: Container[str] = ()
) -> dict[str, Any]:
    """Nested settings with others at dotted paths; sections below `by_name` are made where they are missing.

    Raises UserError naming the section that is not there.
    """
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        inner: Any = values
        for depth, key in enumerate(path):
            if isinstance(inner, dict) and ".".join(path[:depth]) in by_name:
                inner.setdefault(key, {})
            if not isinstance(inner, dict) or not isinstance(inner.get(key), dict):
                place = ".".join(path[:depth]) or "recipe"
                sections = [k for k, v in inner.items() if isinstance(v, dict)] if isinstance(inner, dict) else []
                raise UserError(f"{where}: {dotted}: {place} has no section {key!r}; {nearest(key, sections)}")
            inner = inner[key]
        inner[last] = value
    return values
