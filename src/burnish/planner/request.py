"""Request: what a planner is asked, in one record, and whether it can be answered at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish import presets
from burnish.architecture import Architecture
from burnish.cluster import Cluster, cluster
from burnish.errors import UserError, nearest
from burnish.job import ATTENTION, PRECISIONS, TRAINED, Job
from burnish.mapping import OFFLOAD, RECOMPUTE, SCHEDULE
from burnish.rates import FORMAT
from burnish.stack import Stack, nearest_stack

# What may be fixed, with the name it has in a mapping.
KEYS = (
    *("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero", "shard", "sp", "micro_batch"),
    *("recompute", "schedule", "offload"),
)
SHORT = {"mb": "micro_batch", "micro": "micro_batch", "stage": "zero"}
NAMED = {"recompute": RECOMPUTE, "schedule": SCHEDULE, "offload": OFFLOAD}
STATES = ("parameters", "gradients", "optimizer")
OPTIMIZERS = ("adamw", "adam", "sgd", "muon", "adafactor", "adam8bit", "lion")
DEFAULT_STACK = "megatron-core-2026"
# The stack that is priced where a command for another tool is asked for and no stack is named.
# The rate that a chip must have for a precision, where it is not the one its products run at: block scales in hardware
# come with 4-bit products.
NEEDED = {**FORMAT, "mxfp8": "fp4"}
USUAL = ("bf16", "fp16", "fp32")  # the first that a chip has is taken where none is named
SPOKEN = {"megatron": DEFAULT_STACK, "torchrun": "fsdp2-torchao"}


@dataclass(frozen=True)
class Request:
    """A model, the machines for it, one optimizer step, and what is settled already.

    `batch` counts sequences of `seq` tokens; `fix` holds axes of the mapping by name. `must_shrink` names states that
    data-parallel ranks must split, `forward_gather` says whether they may gather parameters in forward.
    """

    model: Architecture
    cluster: Cluster
    seq: int
    batch: int
    precision: str = "bf16"
    stack: str = ""
    attention: str = "flash"
    trained: str = "all"
    lora_rank: int = 0
    optimizer: str = "adamw"
    fix: Mapping[str, int] = field(default_factory=dict)
    must_shrink: tuple[str, ...] = ()
    forward_gather: bool = True
    fewer_gpus: bool = False
    runnable: bool = False
    dialect: str = ""
    top: int = 8

    @property
    def job(self) -> Job:
        """What is trained, apart from how it is laid out."""
        return Job(
            model=self.model,
            seq=self.seq,
            global_batch=self.batch,
            precision=self.precision,
            attention=self.attention,
            trained=self.trained,
            lora_rank=self.lora_rank,
            optimizer=self.optimizer,
        )

    @property
    def profile(self) -> Stack:
        """The profile of the stack that is priced."""
        return nearest_stack(self.stack or SPOKEN.get(self.dialect, DEFAULT_STACK))[0]

    @property
    def stack_note(self) -> str:
        """How that stack was chosen, where it was not named by a profile's name."""
        if self.stack:
            return nearest_stack(self.stack)[1]
        return f"no stack was named; priced as {self.profile.name}"


def request(model: str, cluster_text: str, seq: int, batch: int, **options: Any) -> Request:
    """A request from texts: a preset, config.json or hub id, and a cluster such as `h100-sxm:8x8`.

    `options` are fields of `Request`; without a precision it is the first of `USUAL` that the chip has. Raises UserError,
    in one line, for whatever cannot be read or planned.
    """
    there = cluster(cluster_text)
    if not options.get("precision"):
        options["precision"] = next((name for name in USUAL if name in there.chip.flops), USUAL[0])
    made = Request(presets.architecture_of(model), there, seq, batch, **options)
    check(made)
    return made


def parse_fix(texts: Iterable[str], option: str = "--fix") -> dict[str, int]:
    """`["tp=8", "pp=4,recompute=full"]` as axes and numbers. Raises UserError naming the legal keys and values."""
    fixed: dict[str, int] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        key, equals, value = (part.strip() for part in text.partition("="))
        name = SHORT.get(key, key)
        if not equals or not value:
            raise UserError(f"{option} {text!r}: write it as KEY=VALUE, for example tp=8; keys: {', '.join(KEYS)}")
        if name not in KEYS:
            raise UserError(f"{option} {text!r}: unknown key {key!r}; {nearest(key, KEYS)}")
        if name in fixed:
            raise UserError(f"{option} {text!r}: {name} is given twice; give it once")
        fixed[name] = _number(name, value, f"{option} {text!r}")
    return fixed


def _number(key: str, value: str, where: str) -> int:
    names = NAMED.get(key)
    if names:
        if value not in names:
            raise UserError(f"{where}: {key} is one of {', '.join(names)}")
        return names.index(value)
    switch = {"on": "1", "off": "0", "yes": "1", "no": "0"} if key == "sp" else {}
    try:
        number = int(switch.get(value, value))
    except ValueError:
        raise UserError(f"{where}: {key} takes a whole number, not {value!r}") from None
    least = 0 if key in ("zero", "shard", "sp") else 1
    most = {"zero": 3, "sp": 1}.get(key)
    if number < least or (most is not None and number > most):
        raise UserError(f"{where}: {key} is {f'{least}..{most}' if most is not None else f'at least {least}'}")
    return number


def check(asked: Request) -> None:
    """Raises UserError, in one line, for what no mapping could answer."""
    chip = asked.cluster.chip
    for name, value in (("--seq", asked.seq), ("--batch", asked.batch), ("--top", asked.top)):
        if value < 1:
            raise UserError(f"{name} {value}: at least 1")
    for name, given, known in (
        ("--precision", asked.precision, PRECISIONS),
        ("--attention", asked.attention, ATTENTION),
        ("--trained", asked.trained, TRAINED),
        ("--optimizer", asked.optimizer, OPTIMIZERS),
        ("--as", asked.dialect or "megatron", tuple(SPOKEN)),
        *(("--must-shrink", state, STATES) for state in asked.must_shrink),
    ):
        if given not in known:
            raise UserError(f"{name} {given!r}: unknown; {nearest(given, known)}")
    if NEEDED.get(asked.precision, asked.precision) not in chip.flops:
        legal = [name for name in PRECISIONS if NEEDED.get(name, name) in chip.flops]
        raise UserError(f"--precision {asked.precision}: {chip.name} does not have it; it has {', '.join(legal)}")
    positions = int(asked.model.positions)
    if positions and asked.seq > positions:
        raise UserError(
            f"--seq {asked.seq}: {asked.model.name} has a table of {positions} positions; use 1..{positions}"
        )
    if asked.trained != "all" and asked.lora_rank < 1:
        raise UserError(f"--trained {asked.trained}: give the rank of the adapters with --lora-rank, for example 16")
    if "parameters" in asked.must_shrink and not asked.forward_gather:
        raise UserError(
            "--must-shrink parameters with --no-forward-gather: ranks that hold parts of the parameters must gather them "
            "in forward; drop one of the two"
        )
