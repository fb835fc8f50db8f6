"""Live bytes: how much memory the tensors of this process hold, and the most they held while a block ran.

Every storage that an operation makes is followed by a weak reference and asked for its size after each operation, so that
storages freed or resized in place (as sharded parameters are) are seen. Memory inside one operation is not.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.groups import local


class LiveBytes(TorchDispatchMode):
    """Context with `peak`, the most bytes alive at the end of any operation inside it, and `start`, those at its begin."""

    def __init__(self) -> None:
        super().__init__()
        self._followed: dict[int, StorageWeakRef] = {}
        self.start = 0
        self.peak = 0

    def __enter__(self) -> LiveBytes:
        gc.collect()
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor):
                self._follow(thing)
        self.start = self.peak = self.now()
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors((out, args)):
            self._follow(tensor)
        self.peak = max(self.peak, self.now())
        return out

    def now(self) -> int:
        """Bytes alive now."""
        total = 0
        for address, followed in list(self._followed.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(followed.cdata)
            if storage is None:
                del self._followed[address]
            else:
                total += storage.nbytes()
        return total

    def _follow(self, tensor: Tensor) -> None:
        try:
            storage = local(tensor).untyped_storage()
        except RuntimeError:  # a tensor without storage of its own
            return
        if storage.device.type != "meta" and storage._cdata not in self._followed:
            self._followed[storage._cdata] = StorageWeakRef(storage)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
