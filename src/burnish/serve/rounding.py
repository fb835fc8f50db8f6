"""Keys and values in 8 bits, with one scale for each channel of a head that holds at every position.

Since a channel's scale is the same at all positions, a key's scales may be multiplied into the query instead, and a value's into
what attention gives: integers are never turned back but as plain numbers. Shape letters: T packed tokens, K key/value heads,
D size of one head, S slots of a pool.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = 127
ROOM = 1.25  # how far beyond what was seen a channel goes before it is cut off
LEAST = 1e-8  # scale of a channel that was zero everywhere


class Scales(NamedTuple):
    """What the integers of keys and values are multiplied by, each [layers, K, D] in float32."""

    keys: Tensor
    values: Tensor


def scales_of(keys: Tensor, values: Tensor, turned: bool) -> Scales:
    """The scales under which none of these keys and values, each [layers, K, S, D], is cut off, with `ROOM` to spare.

    Where keys are `turned` to their positions (rotary, Su et al. 2021) the two channels that are turned together have one scale,
    of their length as a pair, which is the same wherever the key stands.
    """
    if turned:
        lengths = torch.hypot(*keys.float().chunk(2, -1)).amax(2)
        most = torch.cat([lengths, lengths], -1)
    else:
        most = keys.float().abs().amax(2)
    return Scales(*((x * (ROOM / LEVELS)).clamp(min=LEAST) for x in (most, values.float().abs().amax(2))))


def rounded(x_TKD: Tensor, scale_KD: Tensor) -> Tensor:
    """To the nearest integer of 8 bits."""
    return (x_TKD / scale_KD).round_().clamp_(-LEVELS, LEVELS).to(torch.int8)
