"""Distributions of lengths, as words: how many tokens a prompt has, how many are asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from random import Random

from burnish.errors import UserError

FORMS = "128 (always), 32-256 (all equally likely), 16,64,512 (one of them) or exponential:200 (with that mean)"
LONGEST = 10  # times its mean, where an exponential one ends

Lengths = Callable[[Random], int]


def lengths(text: str, option: str) -> Lengths:
    """The distribution that `text` names. Raises UserError naming the option and the forms there are."""
    text = text.replace(" ", "")
    if re.fullmatch(r"\d+(,\d+)*", text):
        choices = [int(part) for part in text.split(",")]
        if min(choices) > 0:
            return lambda draw: draw.choice(choices)
    elif found := re.fullmatch(r"(\d+)-(\d+)", text):
        low, high = int(found[1]), int(found[2])
        if 0 < low <= high:
            return lambda draw: draw.randint(low, high)
    elif (found := re.fullmatch(r"exponential:(\d+)", text)) and (mean := int(found[1])) > 0:
        return lambda draw: min(1 + math.floor(draw.expovariate(1 / mean)), LONGEST * mean)
    raise UserError(f"{option} {text}: a length of 1 or more is written as {FORMS}")
