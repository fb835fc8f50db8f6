"""Recipe: model, data, optimizer, machine and techniques as one frozen object; read, varied, checked and saved here.

A recipe is made by a function, varied with `replace`, and validated once, after all overrides. Nothing is hidden: what
`recipe show` prints is all there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializeAsAny, ValidationError, field_validator

from burnish import passes
from burnish.compressions import Compress
from burnish.config import ModelConfig
from burnish.errors import UserError, nearest
from burnish.section import Section, explain, with_changes
from burnish.techniques.checkpointing import Config as Checkpointing
from burnish.techniques.pipeline import check_rows
from burnish.techniques.precision import Config as Precision
from burnish.techniques.zero import Config as Zero

NAME = re.compile(r"\w[^/\\\x00-\x1f\x7f]{0,99}")
BY_NAME = ("techniques", "compress.settings")  # sections of sections by a technique's name, which a change may open


def _plain(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("a name is also a folder's: start with a letter or digit, no slash, at most 100 characters")
    return value


FolderName = Annotated[str, AfterValidator(_plain)]  # of a recipe: it is also the folder that a run is kept in
LARGEST_SEED = 2**63 - 1  # what a 64-bit signed integer holds: torch, numpy and the checkpoints take it


class Data(Section):
    """Texts to learn from and to be judged on. Paths are files or folders; `asset:` names come with the package.

    `format` chat reads conversations: `loss` says whose words are learned, `template` (a .jinja file) how they are written.
    """

    train: tuple[str, ...]
    heldout: tuple[str, ...] = ()
    heldout_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    tokenizer: str | None = (
        None  # a tokenizer.json, or a shipped model's name; None: train.init's, else a BPE of `train`
    )
    seq: int = Field(default=512, ge=2)
    text_field: str = "text"
    format: Literal["text", "chat"] = "text"
    template: str | None = None  # None: the one that comes with the tokenizer
    loss: Literal["assistant", "all"] = "assistant"  # of a chat; of text all is learned

    @field_validator("train", "heldout", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Optim(Section):
    """AdamW (Loshchilov & Hutter 2019); `clip` is the largest global gradient norm, 0 for none."""

    lr: float = Field(default=3e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    clip: float = Field(default=1.0, ge=0)

    @field_validator("betas")
    @classmethod
    def _betas(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("each beta lies in [0, 1)")
        return value


class Schedule(Section):
    """Learning rate over the run: linear warm-up, then cosine, warm-up-stable-decay, or constant."""

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    decay_steps: int = Field(default=0, ge=0)


class Train(Section):
    """How long and how often. `global_batch` and `micro_batch` are rows of `data.seq` tokens."""

    steps: int = Field(gt=0)
    global_batch: int = Field(gt=0)
    micro_batch: int = Field(gt=0)
    eval_every: int = Field(default=0, ge=0)
    checkpoint_every: int = Field(default=0, ge=0)
    keep: int = Field(default=2, ge=1)
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    init: str | None = None  # a model folder whose weights start the training
    compile: Literal["off", "on", "measure"] = "off"
    tensorboard: bool = False


class Parallel(Section):
    """Ranks of each axis: `dp` see rows of their own, `tp` split matrices, `cp` sequences, `pp` layers, `ep` experts.

    `shard` of the dp x cp ranks split one copy of the states (0 = all). `sequence`: tensor-parallel ranks split the tokens
    between products too. `vpp` chunks a pipeline stage takes in turn, in the order of `schedule`.
    """

    dp: int = Field(default=1, ge=1)
    shard: int = Field(default=0, ge=0)
    zero: Zero = Zero()
    tp: int = Field(default=1, ge=1)
    sequence: bool = True
    cp: int = Field(default=1, ge=1)
    ep: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    vpp: int = Field(default=1, ge=1)
    schedule: Literal["gpipe", "1f1b", "zero-bubble"] = "1f1b"
    head_layers: float | None = Field(default=None, ge=0)  # the head's weight where stages are cut; None: its products

    @property
    def world(self) -> int:
        """Ranks in all; those of experts are among the others."""
        return self.dp * self.tp * self.cp * self.pp


class Memory(Section):
    """What is traded for memory."""

    checkpointing: Checkpointing = Checkpointing()


class Export(Section):
    """The model folder written at the end. `write_tied` repeats a tied head for readers that ask for it."""

    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    write_tied: bool = False
    shard_gib: float = Field(default=4.0, gt=0)
    prompts: tuple[str, ...] = ()  # texts the trained model continues in the report
    sample_tokens: int = Field(default=100, ge=1)

    @field_validator("prompts", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Machine(Section):
    """Where it runs. `chip` None is this machine; a named chip can be planned for, not run on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=0, ge=0)  # 0 = one per core
    chip: str | None = None
    per_node: int = Field(default=8, ge=1)


class Recipe(Section):
    """One resolved recipe."""

    name: FolderName
    about: str = ""
    model: ModelConfig
    data: Data
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    parallel: Parallel = Parallel()
    precision: Precision = Precision()
    memory: Memory = Memory()
    techniques: dict[str, SerializeAsAny[Section]] = Field(
        default_factory=dict
    )  # those without a section of their own, by name
    train: Train
    export: Export = Export()
    compress: Compress = Compress()
    machine: Machine = Machine()

    @field_validator("techniques", mode="before")
    @classmethod
    def _configs(cls, value: Any) -> Any:
        """Settings become the `Config` of the technique they name."""
        if not isinstance(value, dict):
            raise ValueError('expected settings by the name of a technique, such as {"name": {}}')
        known = {technique.name: technique.module.Config for technique in passes.PASSES if not technique.section}
        for name in value:
            if name not in known:
                raise ValueError(f"no technique {name!r}; {nearest(name, known) if known else 'none is kept here'}")
        try:
            return {name: known[name].model_validate(settings) for name, settings in value.items()}
        except ValidationError as error:
            raise explain(error, known[name], name) from None


def build(values: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from nested values. Raises UserError with one line naming the key and what would be right."""
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise explain(error, Recipe, where) from None
    check(recipe, where)
    return recipe


def replace(recipe: Recipe, changes: Mapping[str, Any], where: str = "override") -> Recipe:
    """A variant: `replace(recipe, {"model.layers": 4})`. All changes are applied, then the whole is validated once."""
    values = with_changes(recipe.model_dump(), changes, where, BY_NAME)
    _rederive(values, changes)
    return build(values, where)


def _rederive(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Sizes of the model that follow from another size follow it again unless they were set themselves."""
    if isinstance(values["model"], dict) and ("model.heads" in changes or "model.hidden" in changes):
        for derived in ("head_dim", "kv_heads") if "model.heads" in changes else ("head_dim",):
            if f"model.{derived}" not in changes:
                values["model"][derived] = 0


def check(recipe: Recipe, where: str = "recipe") -> None:
    """What no section can see alone. Raises UserError naming both values."""
    model, data, train, schedule = recipe.model, recipe.data, recipe.train, recipe.schedule
    parallel = recipe.parallel

    def refuse(message: str) -> None:
        raise UserError(f"{where}: {message}")

    if data.seq > model.max_positions:
        refuse(
            f"data.seq {data.seq} exceeds model.max_positions {model.max_positions}; lower the one or raise the other"
        )
    if train.global_batch % parallel.dp:
        refuse(f"train.global_batch {train.global_batch} is not a multiple of parallel.dp {parallel.dp}")
    if train.micro_batch > train.global_batch // parallel.dp:
        rows = train.global_batch // parallel.dp
        refuse(f"train.micro_batch {train.micro_batch} exceeds the {rows} rows a rank has in a step; use 1..{rows}")
    if schedule.warmup_steps + schedule.decay_steps > train.steps:
        most = max(train.steps - schedule.decay_steps, 0)
        refuse(
            f"schedule.warmup_steps {schedule.warmup_steps} + decay_steps {schedule.decay_steps} exceed "
            f"train.steps {train.steps}; set schedule.warmup_steps={min(most, max(1, train.steps // 10))}"
            + ("" if schedule.decay_steps <= train.steps else f" and schedule.decay_steps={train.steps // 5}")
        )
    if schedule.kind == "wsd" and not schedule.decay_steps:
        refuse("schedule.kind wsd needs schedule.decay_steps of at least 1")
    if shared := set(data.train) & set(data.heldout):
        refuse(f"data.heldout: {sorted(shared)[0]!r} is also in data.train; a text cannot be both")
    if data.format == "text" and data.template is not None:
        refuse("data.template writes conversations, and data.format is text; set data.format=chat or leave it out")
    if data.format == "chat" and data.tokenizer is None and train.init is None:
        refuse(
            "data.format chat needs a model's tokenizer and template; name its folder in train.init or data.tokenizer"
        )
    asked = recipe.compress
    if asked.used and not (asked.text or asked.task or data.heldout):
        refuse(
            "compress: nothing to judge by; name a text in compress.text or data.heldout, or examples in compress.task"
        )
    if wrong := _parallel(parallel, data.seq):
        refuse(wrong)
    if parallel.pp <= model.layers and (wrong := _micro_batches(train, parallel)):
        refuse(wrong)


def _micro_batches(train: Train, parallel: Parallel) -> str:
    return check_rows(train.global_batch // parallel.dp, train.micro_batch, parallel.pp, parallel.dp)


def _parallel(parallel: Parallel, seq: int) -> str:
    """What is wrong with the ranks, with the values that would be right; empty when nothing is."""
    ranks, name = parallel.dp * parallel.cp, "parallel.dp x cp" if parallel.cp > 1 else "parallel.dp"
    if parallel.shard and ranks % parallel.shard:
        legal = [n for n in range(1, ranks + 1) if ranks % n == 0]
        return f"parallel.shard {parallel.shard} does not divide {name} {ranks}; values that do: {legal}"
    if parallel.vpp > 1 and parallel.pp == 1:
        return f"parallel.vpp {parallel.vpp} cuts the stages of a pipeline, and there is one; use parallel.pp above 1"
    chunks = 2 * parallel.cp
    if parallel.cp > 1 and seq % chunks:
        near = seq // chunks * chunks
        right = f"{near} or {near + chunks}" if near else str(chunks)
        return f"data.seq {seq} is not a multiple of 2 x parallel.cp {parallel.cp}; use {right}"
    parts = parallel.tp * parallel.cp
    if parallel.tp > 1 and parallel.sequence and seq % parts:
        near = seq // parts * parts
        right = f"{near} or {near + parts}" if near else str(parts)
        over = f"parallel.tp {parallel.tp}" + (f" x cp {parallel.cp}" if parallel.cp > 1 else "")
        return f"data.seq {seq} does not divide over {over}; use {right}, or parallel.sequence=false"
    return ""
