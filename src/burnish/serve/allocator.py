"""The allocator of CUDA memory as one setting: native, expandable segments of it, or CUDA's own stream-ordered one.

Torch reads the setting when it is loaded, so that it comes before everything else (PyTorch docs, "CUDA semantics": Optimizing
memory usage with PYTORCH_ALLOC_CONF). No torch here.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

from burnish.errors import UserError

VARIABLE, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
SETTINGS = {
    "native": "backend:native",
    "expandable": "backend:native,expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
BACKENDS = {"native": "native", "expandable": "native", "async": "cudaMallocAsync"}  # as torch names them


def choose(name: str, environment: MutableMapping[str, str]) -> None:
    """Set the allocator of this process and those it starts, in its environment. Raises UserError for an unknown name, where the
    environment says something else already, and after torch was loaded."""
    if name not in SETTINGS:
        raise UserError(f"--allocator {name}: use {', '.join(SETTINGS)}")
    for variable in (VARIABLE, OLD):
        if environment.get(variable, SETTINGS[name]) != SETTINGS[name]:
            raise UserError(f"--allocator {name}: {variable} is {environment[variable]} already; unset one of them")
    if "torch" in sys.modules and VARIABLE not in environment:
        raise UserError(
            f"--allocator {name}: torch is loaded already; set {VARIABLE}={SETTINGS[name]} before it starts"
        )
    environment[VARIABLE] = SETTINGS[name]


def check(name: str, backend: str) -> None:
    """Raises UserError unless `backend`, of torch.cuda.get_allocator_backend(), is the one chosen."""
    if backend != BACKENDS[name]:
        raise UserError(
            f"--allocator {name}: torch took {backend} in place of {BACKENDS[name]}; is CUDA 11.4 or newer there?"
        )
