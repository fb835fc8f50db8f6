"""A plan as one HTML page that needs nothing but itself: the question, the pick, what it costs, and why no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from burnish.document import document, header, pairs, section, tile, tiles
from burnish.markup import Html, el, join
from burnish.plan_bars import GIB, gib, memory_section, time_section
from burnish.plan_pareto import pareto_section
from burnish.plan_reasons import (
    asked_section,
    ignored_section,
    nothing_section,
    ranked_section,
    remedies_section,
    states_section,
    why_section,
)
from burnish.plan_timeline import percent, step_section
from burnish.units import MISSING, counted, show

Plan = Mapping[str, Any]


def page(plan: Plan) -> str:
    """The page of a plan record. Every string is escaped; a part the plan does not have is left out."""
    built = [made for build in _SECTIONS if (made := build(plan)) is not None]
    body = join(head(plan), lead(plan), figures(plan), el("main", *built), footer(plan))
    title = f"{plan['model']['name']} on {plan['cluster']['name']} {MISSING} Burnish plan"
    return document(title, body, ["plan_page.css"])


def head(plan: Plan) -> Html:
    """The question."""
    there, job, fits = plan["cluster"], plan["job"], plan["fits"]
    facts = [
        el("span", "fits" if fits else "nothing fits", cls=f"status {'done' if fits else 'partly'}"),
        el("span", "uncalibrated", cls="status partly") if plan["uncalibrated"] else None,
        el("span", f"{there['gpus']:,} \u00d7 {there['chip']}"),
        el("span", f"{counted(job['global_batch'], 'sequence')} of {job['seq']:,} tokens a step"),
        el("span", job["precision"]),
        el("span", trained(job)) if job["trained"] != "all" else None,
        el("span", plan["stack"]["name"]),
    ]
    return header("Burnish plan", plan["model"]["name"], [fact for fact in facts if fact is not None])


def trained(job: Mapping[str, Any]) -> str:
    """What is trained, in words."""
    return {"all": "all weights", "lora": "LoRA adapters", "qlora": "QLoRA adapters"}.get(
        job["trained"], job["trained"]
    )


def lead(plan: Plan) -> Html:
    """The pick in one line, or that there is none."""
    pick = plan["pick"]
    if pick is None:
        first = f": {plan['would_fit'][0]['change']}" if plan["would_fit"] else ""
        return el("p", el("strong", "No mapping fits."), f" Would fit{first}." if first else "", cls="lead")
    return el("p", el("strong", pick["words"]), el("span", pick["reason"]), cls="lead")


def figures(plan: Plan) -> Html | None:
    """Headline numbers of the pick."""
    pick, capacity = plan["pick"], plan["cluster"]["memory_gib"]
    if pick is None:
        return None
    doubt = "uncalibrated" if plan["uncalibrated"] else ""
    step = counted(pick["pipeline"]["micro_batches"], "micro batch", "es")
    rate, unit = pick["tokens_per_second"], "tokens/s"
    if rate >= 1e6:
        rate, unit = rate / 1e6, "million tokens/s"
    found = [
        tile("time of a step", pick["seconds"], "seconds", "predicted", doubt or step),
        tile("throughput", rate, unit, "predicted", doubt),
    ]
    if pick["mfu"] is not None:
        found.append(tile("model FLOPs utilization", pick["mfu"], "fraction", "predicted", doubt))
    share = f"{percent(pick['memory_gib'] / capacity)} of {gib(capacity)}" if capacity else ""
    found.append(tile("memory of the fullest GPU", pick["memory_gib"] * GIB, "bytes", "predicted", share))
    return tiles(found)


def memory(plan: Plan) -> Html | None:
    """Memory of the pick, or of what comes nearest."""
    capacity = plan["cluster"]["memory_gib"]
    if plan["pick"]:
        return memory_section(plan["pick"], capacity)
    nearest = plan["alternatives"][:1]
    return memory_section(nearest[0], capacity, "Memory of the nearest") if nearest else None


def command(plan: Plan) -> Html | None:
    """The command another stack would take."""
    if not plan["command"]:
        return None
    return section("Command", "For the stack that was asked for.", el("pre", el("code", plan["command"]), tabindex="0"))


def question(plan: Plan) -> Html:
    """All that was asked, and the machine it was asked for."""
    model, there, job = plan["model"], plan["cluster"], plan["job"]
    rows: list[tuple[object, object]] = [
        ("model", model["name"]),
        ("parameters", show(model["parameters"], "short count")),
        ("of them active", show(model["active_parameters"], "short count") if model["experts"] else None),
        ("layers, hidden size", f"{model['layers']}, {model['hidden']:,}"),
        ("experts a layer", f"{model['experts']:,}" if model["experts"] else None),
        ("cluster", there["name"]),
        ("GPUs", f"{there['gpus']:,} on {counted(there['nodes'], 'node')}"),
        ("memory of a GPU", gib(there["memory_gib"])),
        ("GPUs on fast links", f"{there['domain']:,}"),
        ("tokens of a sequence", f"{job['seq']:,}"),
        ("sequences a step", f"{job['global_batch']:,}"),
        ("tokens a step", f"{job['seq'] * job['global_batch']:,}"),
        ("precision of products", job["precision"]),
        ("attention", job["attention"]),
        ("trained", trained(job)),
        ("optimizer", job["optimizer"]),
        ("stack", plan["stack"]["name"]),
        ("fixed", fixed(plan)),
    ]
    return section("Question", "What the plan was made for.", pairs((name, value) for name, value in rows if value))


def fixed(plan: Plan) -> str:
    """Axes that were settled, by the names they have in a mapping."""
    choices = [plan["pick"], *plan["alternatives"]]
    mapping: Mapping[str, Any] = next((choice["mapping"] for choice in choices if choice), {})
    return ", ".join(f"{axis} {mapping.get(axis, value)}" for axis, value in plan["fixed"].items())


def sources(plan: Plan) -> Html:
    """What stands behind the numbers, and what they leave out."""
    there, searched = plan["cluster"], plan["searched"]
    said: list[object] = list(plan["notes"])
    if plan["uncalibrated"]:
        said.append(f"No measured step of {there['chip']} stands behind its times: they are uncalibrated.")
    said += [
        f"{counted(searched['mappings'], 'mapping')} priced, {searched['fit']:,} fit.",
        "Utilization counts attention under its causal mask and no recomputed work.",
        "The timeline gives backward of a micro batch what runs again.",
    ]
    links = [
        join(el("b", f"{link['name']}, {link['bytes_per_second'] / 1e9:,.0f} GB/s a GPU"), f": {link['source']}")
        for link in (there["link"], there["network"])
    ]
    stack = join(el("b", plan["stack"]["name"]), f": {plan['stack']['source']}")
    items = [el("li", words) for words in (*said, stack, *links) if words]
    return section("Assumptions and sources", "What the numbers rest on.", el("ul", *items, cls="notes"))


def footer(plan: Plan) -> Html:
    """What every number is."""
    words = (
        "Every number is predicted from descriptions of the model, the chip, its links and the stack; nothing was run."
    )
    return el(
        "footer", el("p", words), el("p", f"Made by {plan['made_by']}. With --json the same command prints all of it.")
    )


def step(plan: Plan) -> Html | None:
    """The timeline of the pick."""
    return step_section(plan["pick"]) if plan["pick"] else None


def causes(plan: Plan) -> Html | None:
    """Time of the pick by cause."""
    return time_section(plan["pick"]) if plan["pick"] else None


_SECTIONS: tuple[Callable[[Plan], Html | None], ...] = (
    nothing_section,
    remedies_section,
    memory,
    step,
    causes,
    why_section,
    ranked_section,
    pareto_section,
    asked_section,
    states_section,
    command,
    question,
    ignored_section,
    sources,
)
