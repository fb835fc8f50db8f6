"""What the tests of split work share: a small decoder described, split by techniques, and its figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.config import ModelConfig
from burnish.describe import describe
from burnish.mesh import Mesh
from burnish.shapes import Shapes
from burnish.techniques import checkpointing, context, pipeline, precision, tensor
from burnish.work import Block, Work, flops, fold, saved_bytes, state_bytes

ROWS, SEQ, MICRO = 2, 48, 3
TOKENS = ROWS * SEQ
SIZES = {"hidden": 64, "ffn": 96, "heads": 8, "kv_heads": 4, "head_dim": 8, "layers": 5}
ELEMENT = 2  # bytes of a bf16 activation


def model(vocab: int = 331, tied: bool = False, **sizes: int) -> ModelConfig:
    return ModelConfig(**SIZES | sizes, vocab=vocab, tied=tied, max_positions=4096)


def described(config: ModelConfig, micro: Any = MICRO, rows: Any = ROWS) -> Work:
    """The work of one process in bf16."""
    work = describe(config, Shapes(rows=rows, seq=SEQ, micro=micro))
    return precision.predict(precision.Config(compute="bf16"), work, Mesh())


def split(work: Work, mesh: Mesh, sequence: bool = True, mode: str = "none", schedule: str = "1f1b") -> Work:
    """The work after the techniques that the mesh has ranks for, in their order."""
    for technique, config, used in (
        (tensor, tensor.Config(sequence=sequence), mesh.tp),
        (context, context.Config(), mesh.cp),
        (pipeline, pipeline.Config(schedule=schedule), mesh.pp),
    ):
        if np.any(np.asarray(used) > 1):
            work = technique.predict(config, work, mesh)
    return checkpointing.predict(checkpointing.Config(mode=mode), work, mesh)


def parameters(work: Work) -> int:
    """Elements of all parameters of a rank, unpadded by data-parallel shards."""
    return sum(n * int(np.prod(shape)) for n, shape in work.shapes())


def sent(work: Work, axis: str) -> dict[tuple[str, str], tuple[int, int]]:
    """(phase, kind) -> calls and bytes of one step on an axis."""
    seen = fold(work)
    keys = [key for key in seen if key[0] == "comm_count" and key[2] == axis]
    return {
        (phase, kind): (seen["comm_count", phase, axis, kind], seen["comm_bytes", phase, axis, kind])
        for _, phase, _, kind in keys
    }


def layer(work: Work) -> Block:
    return next(block for block in work.blocks if block.entering)


def in_layer(work: Work) -> dict[tuple[str, str], tuple[int, int]]:
    """(phase, kind) -> calls and bytes of one layer and micro batch."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for comm in (comm for op in layer(work).ops for comm in op.comms):
        calls, size = found.get((comm.phase, comm.kind), (0, 0))
        found[comm.phase, comm.kind] = (calls + comm.count, size + comm.bytes)
    return {key: value for key, value in found.items() if value != (0, 0)}


def figures(work: Work) -> dict[Any, Any]:
    """Everything a description says of a step, flat."""
    states = {("state", name): size for name, size in state_bytes(work).items()}
    passes = dict(zip(("forward", "recompute", "backward"), flops(work), strict=True))
    return {**states, **dict(fold(work)), "saved": saved_bytes(work), "flight": work.flight, **passes}


def at(value: Any, point: int) -> Any:
    """One entry of an array, or the number it would have been."""
    return value[point] if isinstance(value, np.ndarray) and value.ndim else value


def check_arrays(arrays: dict[Any, Any], singles: list[dict[Any, Any]]) -> None:
    """Arrays hold what ints give, and ints give ints."""
    for point, single in enumerate(singles):
        assert {key: at(value, point) for key, value in arrays.items() if at(value, point)} == {
            key: value for key, value in single.items() if value
        }
        assert all(type(value) is int for key, value in single.items() if key != "flight")
