"""Row mapping: how a published run was laid out, from the cells of its line."""

from __future__ import annotations

from typing import Any

from burnish.mapping import OFFLOAD, RECOMPUTE, Mapping
from burnish.rows.cells import Cells, NotExpressed
from burnish.rows.rules import Facts, default, entry, rule, worded

LARGEST_UNSTATED = 8  # chips: beyond them a run without any stated degree could be anything


def degrees(cells: Cells, gpus: int, kind: str) -> dict[str, int]:
    """tp, pp, cp and dp of a line; what is blank is one, and dp is what is left of the chips.

    Raises NotExpressed where the degrees do not multiply to the chips, or none is stated for many chips.
    """
    stated = {name: cells.whole(name) for name in ("tp", "pp", "cp", "dp")}
    silent = all(value is None for value in stated.values()) and cells.blank("sharding")
    if silent and gpus > (LARGEST_UNSTATED if kind in ("fsdp", "deepspeed", "plain") else 1):
        raise NotExpressed("the mapping is not stated")
    made = {name: stated[name] or 1 for name in ("tp", "pp", "cp")}
    inner = made["tp"] * made["pp"] * made["cp"]
    made["dp"] = stated["dp"] or max(1, gpus // inner)
    if inner * made["dp"] != gpus:
        shown = " x ".join(f"{name} {value}" for name, value in made.items())
        raise NotExpressed(f"{shown} is not {gpus} chips")
    return made


def mapping_of(cells: Cells, made: dict[str, int], facts: Facts, node: int) -> Mapping:
    """The whole layout of a line, given its degrees and the chips of a node."""
    zero, shard = _sharding(cells, made, facts, node)
    vpp = cells.whole("vpp") or (int(default(cells, "vpp", facts)) if made["pp"] > 1 else 1)
    micro = cells.whole("micro_batch") or int(default(cells, "micro_batch", facts))
    ep = cells.whole("ep") or 1
    return Mapping(
        **made,
        vpp=vpp,
        ep=ep,
        etp=_expert_tensor(cells, made, ep, facts),
        zero=zero,
        shard=shard,
        sp=_sequence_parallel(cells, made["tp"], facts),
        micro_batch=micro,
        recompute=RECOMPUTE.index(worded(cells, "recompute", facts)),
        offload=OFFLOAD.index(_offload(cells, facts)),
    )


def _sharding(cells: Cells, made: dict[str, int], facts: Facts, node: int) -> tuple[int, int]:
    """ZeRO stage and the size of the group that splits one copy of the states (0 = all)."""
    ranks = made["dp"] * made["cp"]
    if ranks == 1:
        return 0, 0
    row: dict[str, Any] = {}
    if not cells.blank("sharding") or cells.text("sharding").lower() == "none":
        row = entry("sharding", cells.text("sharding")) or {}
        if not row:
            cells.assume(f"sharding: {cells.text('sharding')[:40]!r} is not known")
    zero = int(row["zero"] if row else default(cells, "zero", facts))
    if group := cells.found("notes", r"FSDP group (\d+)"):
        shard = int(group[1])
    else:
        shard = node if row.get("shard") == "node" else int(rule("shard", facts)["value"])
        if shard and shard < ranks:
            cells.assume(f"states split over groups of {shard}")
    return zero, shard if shard < ranks else 0


def _sequence_parallel(cells: Cells, tp: int, facts: Facts) -> int:
    if not cells.blank("sequence_parallel"):
        return int(cells.found("sequence_parallel", r"^(yes|true|on|1)") is not None and tp > 1)
    if tp > 1:
        cells.assume(f"sequence parallel {'on' if facts.stack.sp_default else 'off'}: the stack's own default")
    return facts.stack.sp_default if tp > 1 else 0


def _expert_tensor(cells: Cells, made: dict[str, int], ep: int, facts: Facts) -> int:
    """Expert tensor parallelism: stated, or the stack's habit where it divides the ranks of a stage."""
    if (stated := cells.whole("etp")) is not None:
        return stated
    wanted = made["tp"] if ep > 1 and rule("etp", facts)["value"] == "tp" else 1
    return wanted if made["tp"] * made["cp"] * made["dp"] % (ep * wanted) == 0 else 1


def _offload(cells: Cells, facts: Facts) -> str:
    """What is kept in host memory, as the line says; else the tool's habit, which is seldom any."""
    if cells.found("notes", r"cpu offload (false|off|no)\b"):
        return "none"
    # "the 70B full row uses CPU offload" is a note on each line of a table.
    one = cells.found("notes", r"the (\S+) (\S+) row uses cpu offload") if cells.blank("offload") else None
    if one and one[1].lower() in cells.text("model").lower() and one[2].lower() in facts.workload:
        return "states"
    if (row := entry("offload", cells.text("offload") or cells.text("notes"))) is not None:
        return str(row["value"])
    usual = str(rule("offload", facts)["value"])
    if usual != "none":
        cells.assume(f"offload {usual}: {rule('offload', facts)['why']}")
    return usual
