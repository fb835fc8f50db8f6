"""Plan record: a model's plan as plain values, the JSON that scripts and the page read."""

from __future__ import annotations

from typing import Any

from burnish import __version__
from burnish.hardware import GIB
from burnish.parameters import active_parameters, parameters
from burnish.planner.answer import ModelPlan, WhyNot, split_kinds
from burnish.planner.candidates import gathers_forward
from burnish.planner.choice import Choice, named
from burnish.planner.commands import told
from burnish.planner.explain import Why
from burnish.planner.pricing import capacity, forward_share
from burnish.planner.request import STATES, Request, named_value
from burnish.planner.search import TIE


def record(plan: ModelPlan) -> dict[str, Any]:
    """All of a plan; numbers are predicted. Times in seconds a step, memory in GiB a GPU, rates in bytes a second."""
    return {
        "made_by": f"burnish {__version__}",
        "label": "predicted",
        **asked_record(plan.request),
        "fits": plan.fits,
        "pick": plan.pick and {**plan.pick.record(), "pipeline": pipeline(plan.request, plan.pick)},
        "alternatives": [other.record() for other in plan.alternatives],
        "why": [why_record(why) for why in plan.why],
        "ties_within": TIE,
        "pareto": [point(other) for other in plan.pareto],
        "would_fit": [{**remedy.choice.record(), "change": remedy.change} for remedy in plan.remedies],
        "why_not": [_why_not(asked) for asked in plan.why_not],
        "shrunk": shrunk(plan),
        "ignored": [{"option": option, "why": reason} for option, reason in plan.ignored.items()],
        "notes": list(plan.notes),
        "command": told(plan.request, plan.pick.mapping) if plan.pick and plan.request.dialect else None,
        "searched": {"mappings": plan.considered, "fit": plan.fitting},
    }


def why_record(why: Why) -> dict[str, Any]:
    """One choice of the pick."""
    against = [{"value": value, "text": text} for value, text in why.against]
    return {"axis": why.axis, "value": why.value, "text": why.text, "merit": why.merit, "against": against}


def asked_record(asked: Request) -> dict[str, Any]:
    """The question."""
    model, there, stack = asked.model, asked.cluster, asked.profile
    links = {
        kind: {"name": link.name, "bytes_per_second": link.bandwidth, "source": link.source}
        for kind, link in (("link", there.link), ("network", there.network))
    }
    return {
        "model": {
            "name": model.name,
            "parameters": int(parameters(model)),
            "active_parameters": int(active_parameters(model)),
            "layers": int(model.layers),
            "hidden": int(model.hidden),
            "experts": int(model.experts),
        },
        "cluster": {
            "name": there.name,
            "chip": there.chip.name,
            "gpus": there.gpus,
            "nodes": there.nodes,
            "per_node": there.per_node,
            "domain": there.domain,
            "memory_gib": capacity(asked) / GIB if there.chip.memory else None,
            **links,
        },
        "job": {
            "seq": asked.seq,
            "global_batch": asked.batch,
            "precision": asked.precision,
            "attention": asked.attention,
            "trained": asked.trained,
            "optimizer": asked.optimizer,
        },
        "fixed": {axis: named_value(axis, value) for axis, value in asked.fix.items()},
        "stack": {"name": stack.name, "note": asked.stack_note, "source": stack.source},
        "uncalibrated": uncalibrated(asked),
    }


def uncalibrated(asked: Request) -> bool:
    """Whether no measured step of this chip stands behind its times."""
    return not getattr(asked.cluster.chip, "calibrated", "")


def point(choice: Choice) -> dict[str, Any]:
    """A mapping of the Pareto set, in short."""
    whole = choice.record()
    return {
        key: whole[key] for key in ("mapping", "words", "gpus", "seconds", "memory_gib", "cross_node_bytes_per_step")
    }


def pipeline(asked: Request, choice: Choice) -> dict[str, Any]:
    """What a drawing of the pipeline needs: seconds of a micro batch on a stage, forward and backward."""
    m = choice.mapping
    micro_batches = asked.batch // (int(m.dp) * int(m.micro_batch))
    parts = choice.parts
    again = parts.get("recompute", 0.0) / micro_batches
    outside = ("pipeline bubble", "pipeline sends", "data", "optimizer", "recompute")
    share = forward_share(asked, m)
    both = sum(seconds for cause, seconds in parts.items() if cause not in outside) / micro_batches
    return {
        "stages": int(m.pp),
        "chunks": int(m.vpp),
        "schedule": named(m)["schedule"],
        "micro_batches": micro_batches,
        "forward_seconds": both * share,
        "backward_seconds": both * (1 - share) + again,
        "bubble_seconds": parts.get("pipeline bubble", 0.0),
    }


def _why_not(asked: WhyNot) -> dict[str, Any]:
    values = {axis: named_value(axis, value) for axis, value in asked.asked.items()}
    return {"asked": values, "text": asked.text, "choice": asked.choice and asked.choice.record()}


def shrunk(plan: ModelPlan) -> dict[str, Any] | None:
    """States of the pick's fullest stage at each ZeRO stage, where they were asked to shrink."""
    if not plan.stages or plan.pick is None:
        return None
    stage, zero = plan.pick.owner, int(plan.pick.mapping.zero)
    sizes = [{state: other.stages[stage].get(state, 0.0) / GIB for state in STATES} for other in plan.stages]
    return {
        "asked": list(plan.request.must_shrink),
        "forward_gather_allowed": plan.request.forward_gather,
        "zero": zero,
        "splits": list(split_kinds(zero)),
        "stage": stage,
        "forward_gathers": gathers_forward(zero),
        "memory_gib": {"before": sizes[0], "after": sizes[zero]},
        "by_zero": [{"zero": k, **size, "forward_gathers": gathers_forward(k)} for k, size in enumerate(sizes)],
    }
