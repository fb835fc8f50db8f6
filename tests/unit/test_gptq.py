"""Rounding column by column does what its paper says: the outputs' error shrinks, for inputs whose columns go together."""

from __future__ import annotations

import pytest
import torch

from burnish.compress import gptq as module
from burnish.compress.gptq import gptq
from burnish.compress.gram import Gram, loss
from burnish.compress.rtn import Steps, integers, rounded, steps
from burnish.errors import UserError
from burnish.ops.int4_linear import dequantize
from burnish.weight_format import IntWeights

OUT, WIDTH = 24, 64


def inputs(rank: int = 12, tokens: int = 300) -> torch.Tensor:
    """Inputs of fewer directions than columns, and a little noise."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(tokens, rank, generator=draw) @ torch.randn(rank, WIDTH, generator=draw) + 0.1 * torch.randn(
        tokens, WIDTH, generator=draw
    )


def gram(x: torch.Tensor) -> torch.Tensor:
    seen = Gram(x.shape[1])
    seen.add(x)
    return seen.mean


WEIGHT = torch.randn(OUT, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_error_of_the_outputs_is_a_third_of_rounding_to_nearest(group, symmetric):
    scheme, seen = IntWeights(4, group, symmetric, "float32"), gram(inputs())
    made, nearest = gptq(WEIGHT, seen, scheme), integers(WEIGHT, scheme)
    assert made.values.dtype == torch.int8
    assert made.scale.shape == nearest.scale.shape == (OUT, scheme.groups(WIDTH))
    assert (made.zero is None) == symmetric
    own, plain = (loss(dequantize(one) - WEIGHT, seen) for one in (made, nearest))
    assert own < plain / 3


def reference(weight: torch.Tensor, seen: torch.Tensor, grids: list[Steps], group: int) -> torch.Tensor:
    """The least squares that each step of the algorithm solves, by solving them: with the columns so far fixed, the rest of a
    row minimise the damped error; float64."""
    h = seen.double() + module.DAMPING * seen.diagonal().mean().double() * torch.eye(len(seen), dtype=torch.float64)
    left, made = weight.double().clone(), []
    for i in range(len(seen)):
        grid = grids[i // group]
        q = rounded(left[:, i].float()[:, None, None], grid)[:, 0, 0].double()
        q = (q - (0 if grid.zero is None else grid.zero[:, 0, 0].double())) * grid.scale[:, 0, 0].double()
        made.append(q)
        error = left[:, i] - q
        if i + 1 < len(seen):
            rest = torch.linalg.solve(h[i + 1 :, i + 1 :], h[i + 1 :, i])
            left[:, i + 1 :] += error[:, None] * rest
        left[:, i] = q
    return torch.stack(made, 1)


def check_columns() -> None:
    """The named check: integers are those of the least squares solved one by one, on the same grids."""
    scheme, seen = IntWeights(4, 32, False, "float32"), gram(inputs())
    own = gptq(WEIGHT, seen, scheme)
    assert own.zero is not None
    grids = [Steps(own.scale[:, k, None, None], own.zero[:, k, None, None].float()) for k in range(own.scale.shape[1])]
    wanted = reference(WEIGHT, seen, grids, 32)
    assert (dequantize(own) - wanted.float()).abs().gt(1e-3).float().mean() < 0.01  # where a half is rounded


def test_every_column_makes_up_for_those_before_it():
    check_columns()


@pytest.mark.sabotage
def test_sabotage_errors_that_are_not_made_up(monkeypatch):
    monkeypatch.setattr(module, "_factor", lambda gram: torch.eye(len(gram)))
    with pytest.raises(AssertionError):
        check_columns()


def test_inputs_of_one_size_that_do_not_go_together_leave_nothing_to_make_up():
    scheme = IntWeights(4, 32, False, "float32")
    made = gptq(WEIGHT, torch.eye(WIDTH), scheme)
    grids = Steps(made.scale.unsqueeze(-1), None if made.zero is None else made.zero.float().unsqueeze(-1))
    wanted = rounded(WEIGHT.view(OUT, -1, 32), grids).view(OUT, WIDTH)
    assert torch.equal(made.values.float(), wanted)


def test_an_input_that_is_always_zero_and_one_row_of_texts_do_no_harm():
    x = inputs(tokens=1)
    x[:, 5] = 0
    for seen in (gram(x), torch.zeros(WIDTH, WIDTH)):
        made = gptq(WEIGHT, seen, IntWeights(4, 32, True, "float32"))
        assert dequantize(made).isfinite().all()
        assert (dequantize(made) - WEIGHT).norm() < 0.3 * WEIGHT.norm()


def test_inputs_that_are_no_numbers_are_refused():
    seen = gram(inputs())
    seen[3, 3] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        gptq(WEIGHT, seen, IntWeights(4, 32, True, "float32"))


def test_the_ratio_of_a_group_is_the_one_that_does_least_harm():
    scheme = IntWeights(4, 32, False, "float32")
    block = WEIGHT[:, :32].unsqueeze(1)
    weights = torch.rand(32, generator=torch.Generator().manual_seed(3))

    def harm(grid: Steps) -> torch.Tensor:
        assert grid.zero is not None
        return (((rounded(block, grid) - grid.zero) * grid.scale - block).square() @ weights).squeeze(-1)

    found = harm(module._best(block, scheme, weights))
    every = torch.stack([harm(steps(block, scheme, ratio)) for ratio in module.RATIOS])
    torch.testing.assert_close(found, every.amin(0))
    assert len(set(every.argmin(0).tolist())) > 1
