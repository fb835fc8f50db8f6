"""Torch's random state as text that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def random_state() -> dict[str, Any]:
    """The state of this process, of the CPU's generator and of each CUDA device's."""
    cuda = [_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    return {"torch": _hex(torch.get_rng_state()), "cuda": cuda}


def set_random_state(saved: Mapping[str, Any]) -> None:
    """Go on from `random_state`."""
    torch.set_rng_state(_unhex(saved["torch"]))
    if saved["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_unhex(state) for state in saved["cuda"]])


def _hex(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _unhex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
