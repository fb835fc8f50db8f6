"""The same prediction serves one plan and a search: arrays give what ints give, fast, without torch."""

import subprocess
import sys
import time

import numpy as np
import pytest

from burnish import simulate
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.mesh import Mesh
from burnish.techniques import checkpointing, precision, zero
from burnish.work import Work, fold

MODEL = ModelConfig(
    vocab=32003, hidden=4104, ffn=11009, layers=33, heads=27, kv_heads=9, head_dim=152, tied=False, max_positions=4096
)
POINTS = 15_000  # for each of the four stages


def candidates() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shard = 2 ** draw.integers(0, 7, POINTS)
    dp = shard * 2 ** draw.integers(0, 6, POINTS)
    return {
        "dp": dp,
        "shard": shard,
        "rank": draw.integers(0, dp),
        "rows": draw.integers(1, 9, POINTS),
        "micro": draw.integers(1, 17, POINTS),
    }


def predict(stage: int, compute: str, dp: object, shard: object, rank: object, rows: object, micro: object) -> Work:
    mesh = Mesh(dp=dp, shard=shard, rank=rank)
    work = describe(MODEL, Shapes(rows=rows, seq=2048, micro=micro))
    work = precision.predict(precision.Config(compute=compute), work, mesh)
    work = checkpointing.predict(checkpointing.Config(mode="full"), work, mesh)
    return zero.predict(zero.Config(stage=stage), work, mesh)


def test_sixty_thousand_candidates_take_less_than_0_3_seconds():
    given = candidates()
    best = np.inf
    for _ in range(5):  # other processes share the machine: the best of a few tells what the code takes
        began = time.process_time()
        for stage in range(4):
            work = predict(stage, "bf16", **given)
            seen, memory = fold(work), sum(simulate.step_bytes(work).values())
        best = min(best, time.process_time() - began)
    assert memory.shape == (POINTS,)
    assert len(seen) > 10
    assert best < 0.3


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_arrays_give_what_ints_give(stage, compute):
    given = candidates()
    work = predict(stage, compute, **given)
    seen, memory = fold(work), simulate.step_bytes(work)
    for point in np.random.default_rng(1).integers(0, POINTS, 60):
        single = predict(stage, compute, **{name: int(values[point]) for name, values in given.items()})
        expected = fold(single)
        assert all(isinstance(value, int) for value in expected.values())
        assert {key: at(value, point) for key, value in seen.items() if at(value, point)} == dict(expected)
        assert {key: at(value, point) for key, value in memory.items()} == simulate.step_bytes(single)


def at(value: object, point: int) -> int:
    return int(value[point]) if isinstance(value, np.ndarray) and value.ndim else int(value)


def test_prediction_loads_no_torch():
    code = "import sys, burnish.plan, burnish.techniques.zero; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
