"""Measure: what a step really does (`observe`), how long things take, and how much memory was used.

`observe` gives the same type as a folded description, so predicted and observed are compared by equality. Conventions:
attention FLOPs are counted in full, whatever the mask; parameters are never counted as saved; a storage saved by several
operations is counted once; a collective's bytes follow `work.py`.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, register_flop_formula

from burnish.groups import local
from burnish.ops.together import Member, Together
from burnish.work import BACKWARD, FORWARD, RECOMPUTE, STEP, Observation

if TYPE_CHECKING:
    from burnish.data.batch import Batch
    from burnish.train.step import Trainable

aten = torch.ops.aten


@register_flop_formula([aten._scaled_dot_product_flash_attention_for_cpu])
def _flash_forward(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Two products of S x L x D a head: scores and their product with the values (Dao 2023, arXiv 2307.08691)."""
    rows, heads, queries, dim = query
    return 4 * rows * heads * queries * key[2] * dim


@register_flop_formula([aten._scaled_dot_product_flash_attention_for_cpu_backward])
def _flash_backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """Five products of S x L x D a head: the scores again, and the gradients of v, probabilities, q and k."""
    rows, heads, queries, dim = query
    return 10 * rows * heads * queries * key[2] * dim


# Collectives of torch.distributed as the dispatcher sees them: name -> (kind, which argument carries the counted tensor).
COLLECTIVES = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::allgather_": ("all_gather", 0),
    "c10d::send": ("p2p", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", None),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
}


class _Recorder(TorchDispatchMode):
    """Counts FLOPs and collectives of everything dispatched inside it, by the phase it happens in."""

    def __init__(self, axes: dict[str, str], watcher: Any) -> None:
        super().__init__()
        self.axes = axes  # process group name -> mesh axis
        self.watcher = watcher  # what is called with every tensor that is saved
        self.depth = 0  # forwards of the trainable's parts that are open
        self.seen: Observation = Counter()

    @property
    def phase(self) -> str:
        if torch._C._current_graph_task_id() != -1:
            return RECOMPUTE if torch.is_grad_enabled() or self._inside_second_forward() else BACKWARD
        return FORWARD if self.depth else STEP

    def _inside_second_forward(self) -> bool:
        """Whether a forward without gradients, as a function with a backward of its own has it, runs again in backward:
        a second forward watches what is saved, as the recorder's companion does, on top of it."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return hooks is not None and hooks[0] != self.watcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.seen["flops", self.phase, "", ""] += int(formula(*args, **kwargs, out_val=out))
        elif (name := func._schema.name) in COLLECTIVES:
            kind, index = COLLECTIVES[name]
            size = sum(t.nbytes for t in _tensors(out if index is None else args[index]))
            axis, _, phase = self._axis(args).partition("/")  # a group may say which phase its traffic belongs to
            gathers_states = self.phase == RECOMPUTE and kind == "all_gather" and axis == "shard"
            key = (phase or (BACKWARD if gathers_states else self.phase), axis, kind)
            self.seen["comm_count", *key] += 1
            self.seen["comm_bytes", *key] += size
        return out

    def _axis(self, args: Any) -> str:
        for value in args:
            name = value if isinstance(value, str) else _group_name(value)
            if name in self.axes:
                return self.axes[name]
        return "world"


def _group_name(value: Any) -> str:
    """The name of a process group handed to a collective as an opaque object, or nothing."""
    if isinstance(value, torch.ScriptObject):
        try:
            return str(torch.distributed.ProcessGroup.unbox(value).group_name)
        except (RuntimeError, AttributeError):
            return ""
    return ""


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the distinct storages on this rank that `tensors` are kept in, padding and all."""
    storages = [local(t).untyped_storage() for t in tensors if t is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def observe(trainable: Trainable, batch: list[Batch], lr: float) -> Observation:
    """Run one optimizer step of `trainable` on the micro batches `batch` and count what it did on this rank.

    The step is a real one. `saved` is the most that the forward of a micro batch kept for its backward, in all parts.
    """
    return observed_step(trainable, batch, lr)[1]


def observed_step(trainable: Trainable, batch: list[Batch], lr: float) -> tuple[Any, Observation]:
    """As `observe`, with the step's own result."""
    saved = _SavedBytes(trainable.parts)
    recorder = _Recorder(trainable.ranks.axes, saved.pack)
    gradient = 0

    def note_gradients(*_: Any) -> None:
        nonlocal gradient
        held = [p.grad for p in _parameters(trainable)]
        gradient = max(gradient, storage_bytes([*held, *trainable.ranks.held_apart()]))

    handles = [trainable.optimizer.register_step_pre_hook(note_gradients)]
    for part in trainable.parts:
        handles.append(part.register_forward_pre_hook(note_gradients, prepend=True))
        handles.append(part.register_forward_pre_hook(lambda part, _: saved.begin(part), prepend=True))
    for part in trainable.parts:
        handles += _depth_hooks(part, recorder)
    members = trainable.ranks.members if isinstance(trainable.ranks, Together) else []
    members.append(_Noting(note_gradients))
    try:
        with saved, recorder:
            result = trainable.step(batch, lr)
    finally:
        members.pop()
        for handle in handles:
            handle.remove()
    seen = recorder.seen
    seen["saved", FORWARD, "", ""] = sum(saved.most.values())
    seen["gradient", "", "", ""] = gradient
    seen["parameter", "", "", ""] = storage_bytes(_parameters(trainable))
    states = [v for state in trainable.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    seen["optimizer", "", "", ""] = storage_bytes(states)
    return result, Counter({key: value for key, value in seen.items() if value})


class _Noting(Member):
    """Looks at the gradients ahead of each micro batch, of which a pipeline has several between two forwards."""

    def __init__(self, note: Callable[[], None]) -> None:
        self.note = note

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None:
        self.note()


def _parameters(trainable: Trainable) -> Iterator[Tensor]:
    """What the modules compute with and what the optimizer updates; not the same tensors where states are split."""
    for part in trainable.parts:
        yield from part.parameters()
    yield from trainable.ranks.shards()


def _depth_hooks(part: nn.Module, recorder: _Recorder) -> list[Any]:
    def enter(*_: Any) -> None:
        recorder.depth += 1

    def leave(*_: Any) -> None:
        recorder.depth -= 1

    return [part.register_forward_pre_hook(enter, prepend=True), part.register_forward_hook(leave, always_call=True)]


class _SavedBytes:
    """Context that sums the bytes of distinct storages saved for backward, parameters left out, a micro batch at a time;
    of each part the most."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self.total = 0
        self.most: Counter[nn.Module | None] = Counter()
        self._open: nn.Module | None = None
        self._storages: dict[int, Any] = {}  # kept alive, so that no address is counted for two tensors
        self._parts = parts
        self._hooks: Any = nullcontext()

    def pack(self, tensor: Tensor) -> Tensor:
        plain = local(tensor)
        storage = plain.untyped_storage()
        owned = {local(p).untyped_storage().data_ptr() for part in self._parts for p in part.parameters()}
        if storage.data_ptr() not in owned and storage.data_ptr() not in self._storages:
            self._storages[storage.data_ptr()] = storage
            self.total += storage.nbytes()
            self.most[self._open] = max(self.most[self._open], self.total)
        return tensor

    def begin(self, part: nn.Module) -> None:
        """The next micro batch, in this part."""
        self.total, self._open = 0, part
        self._storages.clear()

    def __enter__(self) -> _SavedBytes:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        self._storages.clear()


@contextmanager
def clock(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of a block to `seconds[name]`."""
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began


def reset_peak(device: str = "cpu") -> int:
    """Start a new peak; returns the bytes in use now, to be taken off the peak that `peak_memory` gives later."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: sets the high-water mark to now
    return peak_memory(device)


def peak_memory(device: str = "cpu") -> int:
    """Largest memory since `reset_peak` in bytes: resident memory of this process, or allocated on the accelerator."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measured_keys(seen: Observation) -> dict[str, float]:
    """An observation under the keys a report shows."""
    names = {"parameter": "parameters", "gradient": "gradients", "optimizer": "optimizer", "saved": "saved"}
    totals: Counter[str] = Counter()
    for (metric, _, axis, _), value in seen.items():
        if metric == "comm_bytes":
            totals[f"comm.bytes.{axis}"] += value
        key = {"flops": "flops.step", "comm_count": "comm.count", "comm_bytes": "comm.bytes"}.get(metric)
        totals[key or f"memory.{names[metric]}"] += value
    return {key: float(value) for key, value in totals.items()}
