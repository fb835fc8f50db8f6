"""Questions with a known answer, put to the planner: bench/results/classic_plans.json.

70 billion parameters on eight nodes of eight: what four mappings send between nodes, what is picked, and whether one domain of
fast links changes it. Then the ZeRO stage for states that must shrink without an all-gather in forward.
"""

from __future__ import annotations

from burnish.hardware import GIB
from burnish.planner import plan_model, request
from burnish.planner.record import shrunk
from burnish.prove import mapping as claim
from record import record


def classic() -> dict[str, float]:
    """GiB between nodes of each mapping asked about, and the picks on nodes and on one domain."""
    nodes, whole = claim.plans()
    assert nodes.pick is not None
    assert whole.pick is not None
    values: dict[str, float] = {}
    for name, asked in zip(claim.ASKED, nodes.why_not, strict=True):
        assert asked.choice is not None
        key = name.replace(" ", "")
        values[f"cross_node_gib_{key}"] = round(asked.choice.cross_node_bytes / GIB, 1)
        values[f"fits_{key}"] = int(asked.choice.fits)
    here, there = nodes.pick.mapping, whole.pick.mapping
    values |= {"pick_tp": int(here.tp), "pick_pp": int(here.pp), "pick_dp": int(here.dp), "pick_cp": int(here.cp)}
    values |= {"domain_tp": int(there.tp), "domain_pp": int(there.pp), "domain_dp": int(there.dp)}
    values["tensor_inside_node"] = int(here.tp <= nodes.request.cluster.domain)
    degrees = [(m.tp, m.pp, m.dp, m.cp) for m in (here, there)]
    values["domain_changes_pick"] = int(degrees[0] != degrees[1])
    return values


def zero_stage() -> dict[str, float]:
    """The stage picked where gradients and optimizer state must shrink, and GiB of both before and after."""
    wanted = ("gradients", "optimizer")
    asked = request(claim.MODEL, claim.NODES, claim.SEQ, claim.BATCH, must_shrink=wanted, forward_gather=False)
    plan = plan_model(asked)
    found = shrunk(plan)
    assert found is not None
    sizes = found["memory_gib"]
    values: dict[str, float] = {"zero_stage": found["zero"], "zero2": int(found["zero"] == 2)}
    values["zero_forward_gathers"] = int(found["forward_gathers"])
    return values | {
        f"{state}_gib_{moment}": round(sizes[moment][state], 2) for state in wanted for moment in ("before", "after")
    }


if __name__ == "__main__":
    values = classic() | zero_stage()
    for name, value in values.items():
        print(f"{name} = {value}")
    print(record("classic_plans", values))
