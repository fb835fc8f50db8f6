"""Reading a request: its body, checked against what may be asked; what is wrong is said by field, in one line."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request as Received

KINDS = re.compile(r"(str|int|function-|constrained)|.*\[")  # what a place says of the kinds that a field may have


class Refused(Exception):
    """A request that cannot be answered: its status and the one line that says why."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


async def read(request: Received, kind: type[BaseModel], most: int) -> Any:
    """The body of at most `most` bytes as `kind`. Raises Refused."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise Refused(413, f"the body has more than {most:,} bytes, the most that is taken")
    try:
        content = json.loads(body, parse_constant=_no_constant)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        return kind.model_validate(content)
    except ValidationError as wrong:
        raise _refusal(wrong) from None
    except UnicodeEncodeError:
        raise Refused(400, "the body has half of a surrogate pair in a text; send whole characters") from None
    except (ValueError, RecursionError) as wrong:
        raise Refused(400, f"the body is not JSON: {str(wrong).splitlines()[0]}") from None


def _refusal(wrong: ValidationError) -> Refused:
    """The first thing that is wrong with a body, by its field."""
    errors = wrong.errors()
    own = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    # A field of several kinds has an error for each: one about its value says more than that it is of another kind.
    found = next((error for error in own if not error["type"].endswith("_type")), own[0])
    place = ".".join(str(part) for part in found["loc"] if not KINDS.match(str(part)))
    said = found["msg"].removeprefix("Value error, ")
    return Refused(400, f"{place}: {said}" if place else said, place.split(".")[0] or None)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
