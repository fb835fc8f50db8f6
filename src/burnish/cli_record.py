"""A command whose options are the fields of one record."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

Record = TypeVar("Record")


def verb(app: Callable[[Record], None], record: type[Record]) -> Callable[..., None]:
    """`app` as the command line calls it: an argument or option for each field of `record`."""

    def command(**values: Any) -> None:
        app(record(**values))

    command.__doc__ = app.__doc__
    command.__annotations__ = get_type_hints(record, include_extras=True)
    command.__signature__ = inspect.signature(record, eval_str=True)  # type: ignore[attr-defined]
    return command
