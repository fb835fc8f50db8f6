"""Row lint: published rows that cannot be, and rows that contradict themselves or their siblings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from burnish.hardware import GIB
from burnish.parameters import parameters
from burnish.rows.cells import Cells, NotExpressed
from burnish.rows.flops import flops_per_token
from burnish.rows.measured import flops_implied, utilisation
from burnish.rows.model import GUESSED, NOTHING_BUT_LAYERS, parameters_of
from burnish.rows.training import Row, Setting

FULL = 0.97  # of a card: states that leave less have no room for a batch
IMPOSSIBLE, SUSPICIOUS = "impossible", "suspicious"
SPARE_LAYERS = 2  # embedding and head may count as layers of a pipeline
AGREE = 0.025  # figures of one run that should follow from each other
NAMED = 6  # rows of one setting that a finding names
REPEAT = 0.25  # times of one setting measured twice
SIZES = 0.05  # parameters stated and counted
UNITS = {"fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}  # formats by the matrix units they run on


@dataclass(frozen=True)
class Finding:
    """A row, how bad it is, and why."""

    id: str
    source: str
    kind: str
    reason: str


def lint(rows: Sequence[Row]) -> list[Finding]:
    """What is wrong with rows, each by itself and beside the others of its source."""
    found = [Finding(row.id, row.source, kind, why) for row in rows for kind, why in _alone(row)]
    settled = {finding.id for finding in found if finding.kind == IMPOSSIBLE}
    others = [row for row in rows if row.setting is not None and row.id not in settled]
    for group, check in ((_release, _utilisations), (_kin, _implied), (_twins, _repeated)):
        for members in _grouped(others, group):
            found += [Finding(row.id, row.source, SUSPICIOUS, why) for row, why in check(members)]
    return found


def impossible(findings: Iterable[Finding]) -> dict[str, str]:
    """Reasons of the impossible rows, by id."""
    return {finding.id: finding.reason for finding in findings if finding.kind == IMPOSSIBLE}


def _alone(row: Row) -> list[tuple[str, str]]:
    try:
        found = [(IMPOSSIBLE, why) for why in _arithmetic(row.cells)]
    except NotExpressed:
        found = []
    if row.repeats:
        found.append((SUSPICIOUS, f"the id {row.repeats} stands in an earlier line too"))
    if row.setting is not None:
        found += [(IMPOSSIBLE, why) for why in _layout(row.setting)]
        guessed = any(said.startswith(GUESSED) for said in row.assumed)
        if row.measured.outcome == "ok":
            kind = SUSPICIOUS if guessed else IMPOSSIBLE
            found += [(kind, why) for why in _ran(row, row.fullest or row.setting)]
        found += [(SUSPICIOUS, why) for why in _sizes(row)]
    return found


def _arithmetic(cells: Cells) -> list[str]:
    """Contradictions between the stated numbers alone."""
    n = {name: cells.whole(name) for name in ("n_gpus", "tp", "pp", "cp", "dp", "heads", "global_batch", "micro_batch")}
    found = []
    if None not in (degrees := [n[name] for name in ("tp", "pp", "cp", "dp")]) and n["n_gpus"]:
        product = 1
        for degree in degrees:
            product *= degree or 1
        if product != n["n_gpus"]:
            found.append(
                f"tp {n['tp']} x pp {n['pp']} x cp {n['cp']} x dp {n['dp']} = {product}, not {n['n_gpus']} chips"
            )
    if n["heads"] and n["tp"] and n["heads"] % n["tp"]:
        found.append(f"{n['heads']} heads do not divide by tp {n['tp']}")
    if n["global_batch"] and n["dp"] and n["micro_batch"] and n["global_batch"] % (n["dp"] * n["micro_batch"]):
        found.append(f"batch {n['global_batch']} does not divide by dp {n['dp']} x micro-batch {n['micro_batch']}")
    return found


def _layout(setting: Setting) -> list[str]:
    """Layouts that the model does not allow, and formats that the chip does not have."""
    model, m, job = setting.job.model, setting.mapping, setting.job
    found = []
    if m.pp * m.vpp > model.layers + SPARE_LAYERS:
        found.append(f"{model.layers} layers on {m.pp} stages of {m.vpp} chunks")
    if m.ep > 1 and (not model.experts or model.experts % m.ep):
        found.append(f"{model.experts} experts over {m.ep} ranks")
    if m.tp * m.cp * m.dp % (m.ep * m.etp):
        found.append(f"experts over {m.ep} x {m.etp} of {m.tp * m.cp * m.dp} ranks")
    known = setting.cluster.chip.flops
    if known and UNITS.get(job.precision, job.precision) not in known:
        found.append(f"{setting.cluster.chip.name} has no {job.precision}")
    return found


def _ran(row: Row, setting: Setting) -> list[str]:
    """Runs that cannot have run: states larger than the memory, or faster than the chip."""
    found = []
    chip, need = setting.cluster.chip, state_bytes(setting)
    if chip.memory and need > FULL * chip.memory:
        found.append(f"{need / GIB:.0f} GiB of states on {chip.memory / GIB:.0f} GiB")
    peak, seconds = max(chip.flops.values(), default=0.0), row.measured.seconds
    if peak and seconds and row.setting is not None:
        job, gpus = row.setting.job, int(setting.mapping.gpus)
        share = 1.0 if job.trained == "all" else 2 / 3  # frozen weights have no gradients
        least = flops_per_token(job.model, int(job.seq), "causal") * int(job.global_batch) * int(job.seq) * share
        if least / (gpus * peak) > seconds:
            found.append(f"{seconds:.3g} s a step; the chips need {least / (gpus * peak):.3g} s at their peak")
    return found


def state_bytes(setting: Setting) -> float:
    """Bytes of parameters, gradients and optimizer states a rank holds at least: its share, without any whole copies."""
    model, m, stack = setting.job.model, setting.mapping, setting.stack
    whole = float(parameters(model))
    dense = float(parameters(replace(model, experts=0, topk=0))) if model.experts else whole
    ranks = int(m.dp) * int(m.cp)
    shards = min(int(m.shard) or ranks, ranks)
    total = 0.0
    for count, split, copies in (
        (dense, m.tp, shards),
        (whole - dense, m.ep * m.etp, max(1, ranks * int(m.tp) // int(m.ep * m.etp)) if not m.shard else shards),
    ):
        own = count / (int(split) * int(m.pp))
        parameter = (0.5 if setting.job.trained == "qlora" else stack.parameter) / (copies if m.zero >= 3 else 1)
        gradient = 0.0 if setting.job.trained != "all" else stack.gradient / (copies if m.zero >= 2 else 1)
        optimizer = stack.optimizer / (copies if m.zero >= 1 else 1)
        if setting.job.trained != "all" or m.offload:
            optimizer = 0.0
        total += own * (parameter + gradient + optimizer if m.offload < 2 else 0.0)
    return total


def _sizes(row: Row) -> list[str]:
    setting = row.setting
    try:
        stated = parameters_of(Cells({"n_params": row.cells.text("n_params")}))
    except NotExpressed as unread:
        return [str(unread)]
    if setting is None or stated is None or row.cells.text("workload") == NOTHING_BUT_LAYERS:
        return []
    counted = float(parameters(setting.job.model))
    if abs(counted / stated - 1) <= SIZES:
        return []
    return [f"sizes make {counted / 1e9:.4g} billion parameters, the row says {stated / 1e9:.4g}"]


def _kin(row: Row) -> tuple[object, ...]:
    """Rows of one source whose tokens cost the same."""
    assert row.setting is not None
    job = row.setting.job
    words = (row.cells.text(name) for name in ("workload", "model"))
    return (row.source, job.model.layers, job.seq, *words)


def _release(row: Row) -> tuple[object, ...]:
    """Of those, the rows of one release of the software: formulas of utilisation change between them."""
    assert row.setting is not None
    return (*_kin(row), row.setting.stack_name)


def _twins(row: Row) -> tuple[object, ...]:
    """Rows of one setting."""
    assert row.setting is not None
    s, words = row.setting, (row.cells.text(name) for name in ("precision", "workload"))
    return (row.source, s.stack_name, s.stack, s.job, s.mapping, s.cluster.name, *words)


def _grouped(rows: Sequence[Row], key: Callable[[Row], tuple[object, ...]]) -> list[list[Row]]:
    made: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.measured.seconds:
            made[key(row)].append(row)
    return [members for members in made.values() if len(members) > 1]


def _utilisations(members: list[Row]) -> list[tuple[Row, str]]:
    """Rows whose utilisation and time do not belong together as they do in the others."""
    made = {}
    for row in members:
        share, setting = utilisation(row.cells), row.setting
        if share and row.measured.quantity == "iter_time_s" and row.measured.seconds and setting is not None:
            peak = setting.cluster.chip.flops.get(setting.job.precision, 0.0)
            work = (
                int(setting.job.seq)
                * int(setting.job.global_batch)
                / (int(setting.mapping.gpus) * row.measured.seconds)
            )
            made[row.id] = share * peak / work
    return _strays(members, made, "utilisation and time")


def _implied(members: list[Row]) -> list[tuple[Row, str]]:
    """Rows whose TFLOPS and tokens a second do not belong together as they do in the others."""
    made = {row.id: flops for row in members if (flops := flops_implied(row.cells))}
    return _strays(members, made, "TFLOPS and tokens a second")


def _strays(members: list[Row], made: dict[str, float], what: str) -> list[tuple[Row, str]]:
    if len(made) < 3 or not all(made.values()):
        return []
    usual = median(made.values())
    return [
        (row, f"{what} imply {made[row.id] / usual:.3f} times the FLOPs a token of its siblings")
        for row in members
        if row.id in made and abs(made[row.id] / usual - 1) > AGREE
    ]


def _repeated(members: list[Row]) -> list[tuple[Row, str]]:
    """Runs of one setting whose times are far apart."""
    times = [row.measured.seconds or 0.0 for row in members]
    if max(times) / min(times) - 1 <= REPEAT:
        return []
    names = ", ".join(row.id for row in members[:NAMED])
    more = f" and {len(members) - NAMED} more" if len(members) > NAMED else ""
    why = f"{min(times):.3g} and {max(times):.3g} s for one setting: {names}{more}"
    return [(row, why) for row in members]
