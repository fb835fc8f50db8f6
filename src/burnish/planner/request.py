"""Request: what a planner is asked, in one record, and whether it can be answered at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from burnish import presets
from burnish.architecture import Architecture
from burnish.cluster import Cluster, cluster
from burnish.errors import UserError, nearest
from burnish.job import ATTENTION, PRECISIONS, TRAINED, Job
from burnish.mapping import OFFLOAD, RECOMPUTE, SCHEDULE
from burnish.rates import FORMAT
from burnish.stack import Stack, kin, nearest_stack, stacks

# What may be fixed, with the name it has in a mapping.
KEYS = (
    *("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero", "shard", "sp", "micro_batch"),
    *("recompute", "schedule", "offload"),
)
SHORT = {"mb": "micro_batch", "micro": "micro_batch", "stage": "zero"}
NAMED = {"recompute": RECOMPUTE, "schedule": SCHEDULE, "offload": OFFLOAD}
STATES = ("parameters", "gradients", "optimizer")
# The ZeRO stage from which data-parallel ranks split a kind of state (Rajbhandari et al. 2020, section 3).
SPLIT_FROM = dict(zip(STATES, (3, 2, 1), strict=True))
OPTIMIZERS = ("adamw", "adam", "sgd", "muon", "adafactor", "adam8bit", "lion")
DEFAULT_STACK = "megatron-core-2026"
# The stack that is priced where a command for another tool is asked for and no stack is named.
# The rate that a chip must have for a precision, where it is not the one its products run at: block scales in hardware
# come with 4-bit products.
NEEDED = {**FORMAT, "mxfp8": "fp4"}
USUAL = ("bf16", "fp16", "fp32")  # the first that a chip has is taken where none is named
# The longest sequence, the largest step and the largest size of a model that are searched.
MOST_TOKENS, MOST_SEQUENCES, MOST_LAYERS, MOST_SIZE = 2**27, 2**30, 2**16, 2**31
ALONE = ("cp", "ep", "etp")  # what `burnish train` has one of
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
    counts: tuple[int, ...] = ()  # numbers of GPUs to look at; empty = all of them, or what `fewer_gpus` allows
    runnable: bool = False
    dialect: str = ""
    top: int = 8

    @property
    def job(self) -> Job:
        """What is trained, apart from how it is laid out."""
        return Job(
            model=self.model,
            seq=float(self.seq),  # so that sizes of long sequences leave no whole number's range
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
        """How that stack was chosen, where it was not named."""
        return nearest_stack(self.stack)[1] if self.stack else f"no stack was named; priced as {self.profile.name}"

    @property
    def device(self) -> str:
        """What a rank runs on, in a word."""
        return "GPU" if self.cluster.chip.accelerator else "processor"


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


def named_value(axis: str, value: int) -> int | str:
    """A value of an axis, by name where it stands for something."""
    return NAMED[axis][value] if axis in NAMED else value


def fixed_words(fix: Mapping[str, int]) -> str:
    """What is fixed, as it was written: `tp=8, recompute=full`."""
    return ", ".join(f"{key}={named_value(key, value)}" for key, value in fix.items())


def check(asked: Request) -> None:
    """Raises UserError, in one line, for what no mapping could answer."""
    _check_sizes(asked)
    _check_names(asked)
    _check_settings(asked)


def _check_sizes(asked: Request) -> None:
    model = asked.model
    for name, value, most in (
        ("--seq", asked.seq, MOST_TOKENS),
        ("--batch", asked.batch, MOST_SEQUENCES),
        ("--top", asked.top, MOST_SEQUENCES),
    ):
        if value < 1:
            raise UserError(f"{name} {value}: at least 1")
        if value > most:
            raise UserError(f"{name} {value}: at most {most}")
    for size in fields(model):
        value, most = getattr(model, size.name), MOST_LAYERS if size.name.endswith("layers") else MOST_SIZE
        if not isinstance(value, str) and value > most:
            raise UserError(f"model {model.name}: {size.name} {int(value)}: at most {most} can be planned")
    positions = int(model.positions)
    if positions and asked.seq > positions:
        raise UserError(f"--seq {asked.seq}: {model.name} has a table of {positions} positions; use 1..{positions}")


def _check_names(asked: Request) -> None:
    for name, given, options in (
        ("--precision", asked.precision, PRECISIONS),
        ("--attention", asked.attention, ATTENTION),
        ("--trained", asked.trained, TRAINED),
        ("--optimizer", asked.optimizer, OPTIMIZERS),
        ("--as", asked.dialect or "megatron", tuple(SPOKEN)),
        *(("--must-shrink", state, STATES) for state in asked.must_shrink),
    ):
        if given not in options:
            raise UserError(f"{name} {given!r}: unknown; {nearest(given, options)}")
    if asked.stack and not kin(asked.stack):
        near = nearest(asked.stack, stacks())
        known = "" if near.startswith("known") else f" known: {', '.join(sorted(stacks()))}"
        raise UserError(f"--stack {asked.stack!r}: unknown; {near}{known}")
    chip = asked.cluster.chip
    if NEEDED.get(asked.precision, asked.precision) not in chip.flops:
        legal = [name for name in PRECISIONS if NEEDED.get(name, name) in chip.flops]
        raise UserError(f"--precision {asked.precision}: {chip.name} does not have it; it has {', '.join(legal)}")


def _check_settings(asked: Request) -> None:
    if asked.trained != "all" and asked.lora_rank < 1:
        raise UserError(f"--trained {asked.trained}: give the rank of the adapters with --lora-rank, for example 16")
    if "parameters" in asked.must_shrink and not asked.forward_gather:
        raise UserError(
            "--must-shrink parameters with --no-forward-gather: ranks that hold parts of the parameters must gather them "
            "in forward; drop one of the two"
        )
    if asked.dialect and asked.trained != "all":
        raise UserError(
            f"--as {asked.dialect}: its command trains all weights; --trained {asked.trained} has no option there"
        )
    zero, states = asked.fix.get("zero"), asked.must_shrink
    if zero is not None and (kept := [state for state in states if zero < SPLIT_FROM[state]]):
        least = max(SPLIT_FROM[state] for state in kept)
        raise UserError(
            f"--must-shrink {','.join(states)} with zero={zero}: ZeRO stage {zero} leaves {' and '.join(kept)} whole on "
            f"every rank; use stage {least} or above"
        )
    if zero == SPLIT_FROM["parameters"] and not asked.forward_gather:
        raise UserError(
            f"--no-forward-gather with zero={zero}: stage {zero} gathers parameters in forward; use 0..{zero - 1}"
        )
    if asked.runnable:
        _check_runnable(asked)


def _check_runnable(asked: Request) -> None:
    """What is fixed must be what `burnish train` has: three kinds of parallelism with ZeRO, whole layers run again."""
    own = "--runnable: burnish train has tensor, pipeline and data parallelism with ZeRO"
    for key in ALONE:
        if asked.fix.get(key, 1) > 1:
            raise UserError(f"{own}, {key} 1; drop {key}={asked.fix[key]} or --runnable")
    legal = {"recompute": ("none", "full"), "offload": ("none",), "schedule": ("1f1b", "gpipe")}
    for key, names in legal.items():
        if key in asked.fix and (name := named_value(key, asked.fix[key])) not in names:
            raise UserError(f"{own}, {key} {' or '.join(names)}; drop {key}={name} or --runnable")
