"""Expert parallelism as predicted: bytes of the all-to-alls, parameters of all ranks, arrays like ints."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_work import check_arrays, described, figures, model, parameters, sent

from burnish.describe import describe
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.parameters import parameters as all_parameters
from burnish.presets import architecture_of
from burnish.shapes import Shapes
from burnish.techniques import experts, tensor
from burnish.work import Bytes, Work, flops

MIXTRAL = architecture_of("mixtral-8x7b")  # 32 layers of 8 experts, of which a token takes 2
TOKENS = 4096


def routed(micro: int = 1) -> Work:
    return replace(describe(MIXTRAL, Shapes(1, TOKENS, micro)), bytes=Bytes(2, 2, activation=2))


def spread(work: Work, mesh: Mesh) -> Work:
    """Tensor and expert parallelism, in their order."""
    work = tensor.predict(tensor.Config(), work, mesh) if np.any(mesh.tp > 1) else work
    return experts.predict(experts.Config(), work, mesh)


def check_sends(ep: int, tp: int = 1) -> None:
    """GShard (Lepikhin et al. 2020), section 3.2: routed tokens go out and come back, forward and backward."""
    size = TOKENS * 2 * 4096 * 2 // tp
    found = sent(spread(routed(3), Mesh(dp=8, tp=tp, ep=ep)), "ep")
    calls = 3 * 32 * 2
    assert found == {(phase, "all_to_all"): (calls, calls * size) for phase in ("forward", "backward")}


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("tp", [1, 2])
def test_two_all_to_alls_a_layer_each_way(ep, tp):
    check_sends(ep, tp)


def expert_parameters(work: Work) -> int:
    ops = [(block.layers, op) for block in work.blocks for op in block.ops if op.group == "experts"]
    return sum(layers * shape[0] * shape[1] for layers, op in ops for shape in op.shapes)


def check_shares(ep: int, etp: int) -> None:
    part = spread(routed(), Mesh(dp=8, ep=ep, etp=etp))
    assert expert_parameters(part) * ep * etp == 32 * 8 * 3 * 4096 * 14336
    rest = parameters(part) - expert_parameters(part)
    assert rest + expert_parameters(part) * ep * etp == parameters(routed()) == all_parameters(MIXTRAL)


@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (2, 1), (8, 1), (2, 4), (1, 8)])
def test_ranks_hold_the_whole_together(ep, etp):
    check_shares(ep, etp)


def test_a_rank_computes_what_it_did():
    """Balanced: as many tokens reach a rank's experts as left it."""
    assert flops(spread(routed(), Mesh(dp=8, ep=8))) == flops(routed())


def test_one_rank_sends_nothing():
    assert sent(spread(routed(), Mesh(dp=8)), "ep") == {}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2])), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_arrays_give_what_ints_give(points):
    ep, etp = (np.array(column) for column in zip(*points, strict=True))

    def predicted(ep, etp):
        return figures(spread(routed(), Mesh(dp=16, ep=ep, etp=etp)))

    check_arrays(predicted(ep, etp), [predicted(*point) for point in points])


@pytest.mark.parametrize(
    ("work", "mesh", "said"),
    [
        (described(model()), Mesh(dp=2, ep=2), "parallel.ep 2: the model has no experts; use parallel.ep=1"),
        (routed(), Mesh(dp=16, ep=3), "must divide 8 experts and, with .* the 16 ranks of a stage; use 1, 2, 4, 8"),
        (routed(), Mesh(dp=4, ep=8), "the 4 ranks of a stage; use 1, 2, 4"),
        (routed(), Mesh(dp=4, ep=4, etp=2), "the 4 ranks of a stage; use 1, 2$"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_does(work, mesh, said):
    with pytest.raises(UserError, match=said):
        experts.check(experts.Config(), work, mesh)


@pytest.mark.sabotage
def test_sabotage_tokens_that_do_not_come_back():
    def one_way(op, work, mesh):
        return sends(op, work, mesh)[:1]

    sends = experts._sent
    with mock.patch.object(experts, "_sent", one_way), pytest.raises(AssertionError):
        check_sends(4)


@pytest.mark.sabotage
def test_sabotage_experts_on_every_rank():
    with mock.patch.object(experts, "EXPERT", "no such split"), pytest.raises(AssertionError):
        check_shares(8, 1)
