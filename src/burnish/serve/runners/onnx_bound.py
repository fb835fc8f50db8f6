"""A session of onnxruntime that reads and writes tensors where they lie: nothing is copied in or out.

The sessions of one process share one store for what their operators make in between, so that it is as large as the largest
of them needs, and not as all of them together.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from burnish.export.onnx_file import writing
from burnish.export.onnx_graph import Graph

TYPES: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int8: np.int8,
}
AWAKE, TIMES = 50, 9  # microseconds, longer than an operator that one thread does takes; measured runs
AS_ASKED = 1  # the store grows by what is asked for, not to the next power of two

T = TypeVar("T")


class Bound:
    """One graph. The tensors of a run are on the CPU and contiguous, and must be there until it is over.

    `awake`: microseconds that a thread looks out for its next share of a run before it sleeps. `fixed`: what inputs are in every
    run; those that the graph does not have are left out.
    """

    def __init__(self, graph: Graph, path: Path, threads: int, fixed: Mapping[str, Tensor], awake: int = 0) -> None:
        self.awake, self.session = awake, _session(graph, path, threads, awake)
        self.bytes = sum(kept.data.nbytes for kept in graph.kept.values())
        self._binding = self.session.io_binding()
        self._places: dict[str, tuple[int, torch.Size]] = {}
        asked = {given.name for given in self.session.get_inputs()}
        self._fixed = {name: x for name, x in fixed.items() if name in asked}
        self._bind(self._binding.bind_input, self._fixed)

    def __call__(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Fill `outputs` from `inputs`. What lies where it lay in the call before is not named again."""
        self._bind(self._binding.bind_input, inputs)
        self._bind(self._binding.bind_output, outputs)
        self.session.run_with_iobinding(self._binding)

    def _bind(self, bind: Callable[..., None], given: Mapping[str, Tensor]) -> None:
        for name, x in given.items():
            place = (x.data_ptr(), x.shape)
            if self._places.get(name) != place:
                bind(name, "cpu", 0, TYPES[x.dtype], list(x.shape), place[0])
                self._places[name] = place

    def lies(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], place: int) -> None:
        """Say where an input lies that the graph gives out in place, as `name`.out, from this call on."""
        self._binding.bind_input(name, "cpu", 0, TYPES[dtype], list(shape), place)
        self._binding.bind_output(f"{name}.out", "cpu", 0, TYPES[dtype], list(shape), place)


def soonest(make: Callable[[int], T], run: Callable[[T], None], threads: int) -> T:
    """What is sooner done with a run here and now: made so that its threads sleep between products, or stay awake for a moment.

    Awake they need not be woken some hundred times a step, but keep cores from other processes.
    """
    if threads == 1:
        return make(0)
    made = [make(awake) for awake in (0, AWAKE)]
    took = [[_seconds(run, one) for one in made] for _ in range(TIMES + 1)]
    return min(zip(made, zip(*took[1:], strict=True), strict=True), key=lambda one: statistics.median(one[1]))[0]


def _seconds(run: Callable[[T], None], one: T) -> float:
    began = time.perf_counter()
    run(one)
    return time.perf_counter() - began


def _session(graph: Graph, path: Path, threads: int, awake: int) -> Any:
    import onnxruntime

    _share_store()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(awake > 0)))
    if awake:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(awake))
        options.add_session_config_entry("session.force_spinning_stop", "1")  # at the end of a run
    options.add_session_config_entry("session.use_env_allocators", "1")
    with writing(graph, path) as written:
        return onnxruntime.InferenceSession(str(written), options, providers=["CPUExecutionProvider"])


@functools.cache
def _share_store() -> None:
    """Once a process: the library knows one such store, and sessions ask for it."""
    import onnxruntime

    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    extent = onnxruntime.OrtArenaCfg({"arena_extend_strategy": AS_ASKED})
    onnxruntime.create_and_register_allocator(where, extent)
