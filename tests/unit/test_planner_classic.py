"""70 billion parameters on eight nodes of eight: which links each mapping uses decides, and bytes between nodes are exact."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.hardware import GIB
from burnish.mapping import Mapping
from burnish.planner import ModelPlan, request
from burnish.planner.choice import choices
from burnish.prove import mapping as claim

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


@pytest.fixture(scope="module")
def plans() -> tuple[ModelPlan, ModelPlan]:
    return claim.plans()


def test_the_pick_keeps_tensor_parallelism_in_the_node_and_a_larger_domain_changes_it(
    plans: tuple[ModelPlan, ModelPlan],
) -> None:
    nodes, whole = plans
    assert nodes.pick is not None
    assert whole.pick is not None
    assert 1 < nodes.pick.mapping.tp <= 8
    assert nodes.pick.mapping.pp > 1
    ours, theirs = nodes.pick.mapping, whole.pick.mapping
    assert (ours.tp, ours.pp, ours.dp, ours.cp) != (theirs.tp, theirs.pp, theirs.dp, theirs.cp)
    assert whole.pick.cross_node_bytes == 0
    assert whole.pick.seconds < nodes.pick.seconds


def test_the_page_shows_the_bytes_and_what_fits(plans: tuple[ModelPlan, ModelPlan]) -> None:
    rows = re.findall(r"^\| ((?:tp|dp) [^|]+) \| ([\d,]+) \| (yes|no) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert [name for name, _, _ in rows] == list(claim.ASKED)
    for (name, gib, fits), asked in zip(rows, plans[0].why_not, strict=True):
        assert asked.choice is not None
        assert round(asked.choice.cross_node_bytes / GIB) == int(gib.replace(",", "")), name
        assert asked.choice.fits == (fits == "yes"), name


@pytest.mark.parametrize(
    "mapping",
    [
        Mapping(tp=64, sp=1, micro_batch=2),
        Mapping(dp=64, zero=1),
        Mapping(tp=8, dp=8, sp=1, zero=1, micro_batch=4),
        Mapping(tp=8, pp=8, sp=1, micro_batch=2),
        Mapping(tp=8, pp=8, vpp=5, sp=1),
        Mapping(tp=4, pp=4, dp=4, sp=1, zero=1, vpp=5),
        Mapping(tp=16, pp=2, dp=2, sp=1, zero=1),
        Mapping(tp=2, pp=4, dp=8, sp=1, zero=1),
    ],
)
@pytest.mark.parametrize("cluster", ["h100-sxm:8x8", "h100-sxm:16x4", "h100-sxm:1x64"])
def test_bytes_between_nodes_are_those_counted_send_by_send(mapping: Mapping, cluster: str) -> None:
    asked = request(claim.MODEL, cluster, claim.SEQ, claim.BATCH)
    counted = claim.counted(asked, mapping)
    assert choices(asked, [mapping])[0].cross_node_bytes == pytest.approx(counted, rel=0.01)


def test_tensor_parallelism_over_nodes_is_slower_for_its_traffic(plans: tuple[ModelPlan, ModelPlan]) -> None:
    nodes, whole = plans
    across, mapping = (nodes.why_not[0].choice, Mapping(tp=64, sp=1, zero=0, micro_batch=16))
    assert across is not None
    same = choices(whole.request, [replace(across.mapping)])[0]
    assert same.seconds < 0.8 * across.seconds
    assert choices(nodes.request, [mapping])[0].cross_node_bytes == across.cross_node_bytes
