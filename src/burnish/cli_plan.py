"""The plan verb: a recipe on its machine, or any decoder on any cluster. Options are the fields of one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from burnish.errors import BudgetNotMet, UserError

if TYPE_CHECKING:
    from burnish.architecture import Architecture
    from burnish.vision.recipe import VisionRecipe


SERVING = ("chip", "gpus", "memory", "prompt", "new", "weights", "kv", "engine")  # options of --serve alone

TRAINING = (
    "overrides",
    "seq",
    "precision",
    "stack",
    "fix",
    "why_not",
    "must_shrink",
    "html",
    "as_",
    "trained",
    "optimizer",
)


@dataclass(frozen=True)
class Options:
    """What `burnish plan` takes."""

    what: Annotated[
        str,
        Argument(
            metavar="model|recipe", help="A decoder (preset, config.json or hub id), or a recipe without --cluster."
        ),
    ] = ""
    overrides: Annotated[list[str] | None, Argument(help="Changes of a recipe such as train.steps=100.")] = None
    cluster: Annotated[str, Option(help="Chip, nodes and chips a node, such as h100-sxm:8x8, or a TOML file.")] = ""
    seq: Annotated[int | None, Option(help="Tokens of a sequence.")] = None
    batch: Annotated[int | None, Option(help="Sequences of one optimizer step on all ranks.")] = None
    precision: Annotated[str, Option(help="Format of matrix products; else bf16, or fp16 where the chip has none.")] = (
        ""
    )
    stack: Annotated[str, Option(help="Whose software runs it, such as megatron-core-2026.")] = ""
    attention: Annotated[str, Option(help="Attention kernel.")] = "flash"
    optimizer: Annotated[str, Option(help="Optimizer.")] = "adamw"
    trained: Annotated[str, Option(help="all, lora or qlora.")] = "all"
    lora_rank: Annotated[int, Option(help="Rank of adapters.")] = 0
    fix: Annotated[list[str] | None, Option(help="Settle an axis: tp=8, zero=1, recompute=full; may be repeated.")] = (
        None
    )
    why_not: Annotated[
        list[str] | None, Option(help="Explain why a mapping is not the pick: tp=4,pp=8; may be repeated.")
    ] = None
    must_shrink: Annotated[str, Option(help="States that ranks must split: gradients,optimizer.")] = ""
    no_forward_gather: Annotated[bool, Option("--no-forward-gather", help="Gather no parameters in forward.")] = False
    gpus_free: Annotated[bool, Option("--gpus-free", help="Allow fewer GPUs than the cluster has.")] = False
    runnable: Annotated[bool, Option("--runnable", help="Only what `burnish train` can do.")] = False
    top: Annotated[int, Option(help="How many alternatives to show.")] = 8
    serve: Annotated[bool, Option("--serve", help="Plan serving the model, not training it.")] = False
    chip: Annotated[str, Option(help="With --serve: the chip, such as h100-sxm; or here.")] = ""
    gpus: Annotated[int, Option(help="With --serve: how many of it.")] = 1
    memory: Annotated[str, Option(help="With --serve: memory of a chip to use, such as 40GiB; else all.")] = ""
    prompt: Annotated[int, Option(help="With --serve: tokens of a prompt.")] = 1024
    new: Annotated[int, Option(help="With --serve: tokens to write.")] = 256
    weights: Annotated[str, Option(help="With --serve: formats to compare: bf16,fp8,int8,int4,q4,fp4.")] = "bf16"
    kv: Annotated[str, Option(help="With --serve: format of keys and values: bf16 or fp8.")] = "bf16"
    engine: Annotated[str, Option(help="With --serve: generation of the engine.")] = "fused-2023"
    list_: Annotated[str, Option("--list", help="Print the names of all models or stacks: models, stacks.")] = ""
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False
    html: Annotated[Path | None, Option(help="Write a page with the plan.")] = None
    as_: Annotated[str, Option("--as", help="Also print the command of another stack: torchrun or megatron.")] = ""


def plan(options: Options) -> None:
    """Predict what fits, which mapping is fastest and why; needs no GPU and no torch."""
    if options.list_:
        listed(options.list_)
    elif options.serve:
        plan_serving(options)
    elif options.cluster:
        plan_model(options)
    else:
        plan_recipe(options)


def listed(what: str) -> None:
    """The names that a plan may be asked for: decoders with their sizes, or stacks with what they are."""
    from burnish.planner import names

    for line in names.lines(what):
        print(line)


def plan_recipe(options: Options) -> None:
    """A recipe on its own machine."""
    from burnish import recipe_files, show
    from burnish.plan import make_plan
    from burnish.presets import lookup
    from burnish.recipe import Recipe
    from burnish.recipes import shipped

    if not options.what:
        raise UserError("plan: name a recipe, or a model with --cluster; --list models and --list stacks print names")
    defaults = {name: value for name, value in vars(Options("")).items() if name not in ("what", "overrides", "json")}
    if given := [name for name, value in defaults.items() if getattr(options, name) != value]:
        options_ = ", ".join(f"--{name.strip('_').replace('_', '-')}" for name in given)
        if set(given) <= set(SERVING):
            raise UserError(f"plan {options.what}: {options_} plan serving; add --serve")
        raise UserError(
            f"plan {options.what}: {options_} plan a model on a cluster; add --cluster, such as h100-sxm:8x8"
        )
    if options.what not in shipped() and lookup(options.what):
        raise UserError(
            f"plan {options.what}: a decoder is planned for a cluster: add --cluster h100-sxm:8x8 --seq 4096 --batch 512"
        )
    recipe, _ = recipe_files.load_any(options.what, options.overrides or ())
    if not isinstance(recipe, Recipe):
        return _plan_vision(recipe, options.json)
    made = make_plan(recipe)
    print(made.model_dump_json(indent=1)) if options.json else show.plan(made)
    if made.fits is False:
        raise BudgetNotMet(
            f"{made.recipe} does not fit on {made.machine}; try memory.checkpointing=full or a higher parallel.zero"
        )


def _plan_vision(recipe: VisionRecipe, json: bool) -> None:
    """A recipe of vision: its images are looked at, and what is derived from them is shown."""
    from burnish import show
    from burnish.finished import require_vision

    require_vision("burnish plan")
    from burnish.vision.flow import planned

    made = planned(recipe)
    print(made.model_dump_json(indent=1)) if json else show.plan(made)
    if made.fits is False:
        raise BudgetNotMet(
            f"{made.recipe} does not fit on {made.machine}; try a smaller train.micro_batch or images.patch"
        )


def plan_model(options: Options) -> None:
    """A decoder on a cluster."""
    import json

    from burnish import planner
    from burnish.planner import text
    from burnish.planner.record import record
    from burnish.streams import printable

    if not options.what:
        raise UserError("plan: name the model to plan for the cluster; --list models prints names")
    if options.overrides:
        raise UserError(
            f"plan {options.what}: {options.overrides[0]!r} changes a recipe; with --cluster use --fix tp=8"
        )
    for name, value in (("--seq", options.seq), ("--batch", options.batch)):
        if value is None:
            raise UserError(f"plan {options.what}: {name} is missing; give --seq 4096 --batch 512, for example")
    assert options.seq is not None
    assert options.batch is not None
    if options.html is not None:
        _check_page(options, options.html)
    asked = planner.request(
        options.what,
        options.cluster,
        options.seq,
        options.batch,
        precision=options.precision,
        stack=options.stack,
        attention=options.attention,
        optimizer=options.optimizer,
        trained=options.trained,
        lora_rank=options.lora_rank,
        fix=planner.parse_fix(options.fix or ()),
        must_shrink=tuple(state.strip() for state in options.must_shrink.split(",") if state.strip()),
        forward_gather=not options.no_forward_gather,
        fewer_gpus=options.gpus_free,
        runnable=options.runnable,
        top=options.top,
        dialect=options.as_,
    )
    made = planner.plan_model(asked, [planner.parse_fix([text], "--why-not") for text in options.why_not or ()])
    values = record(made) if options.json or options.html is not None else {}
    if options.html is not None:
        from burnish.plan_page import page
        from burnish.records import write_text

        write_text(options.html, page(values), folders=False)
    print(json.dumps(values, indent=1) if options.json else "\n".join(map(printable, text.lines(made))))
    if not made.fits:
        help_ = f"; would fit: {made.remedies[0].change}" if made.remedies else ""
        raise BudgetNotMet(f"{asked.model.name} does not fit on {asked.cluster.name}{help_}")


def _check_page(options: Options, page: Path) -> None:
    """Raises UserError, before anything is planned, where the page cannot be written or would replace what is read."""
    from burnish.records import replaced

    target = replaced(page, folders=False)
    read = (Path(options.what), Path(options.what) / "config.json", Path(options.cluster))
    if target.exists() and (own := next((path for path in read if path.is_file() and path.samefile(target)), None)):
        raise UserError(f"--html {page}: is the file {str(own)!r} that the plan reads; give the page another name")


def plan_serving(options: Options) -> None:
    """Print what fits and how fast it is. Raises BudgetNotMet, with the nearest remedies, where nothing fits."""
    import json

    from burnish.cli_engine import bytes_of
    from burnish.cluster import cluster
    from burnish.serve_plan.plan import Asked, plan
    from burnish.serve_plan.text import lines, record
    from burnish.streams import printable

    _check_serving(options)
    chips = options.cluster or (options.chip if options.chip == "here" else f"{options.chip}:1x{options.gpus}")
    made = plan(
        Asked(
            _decoder(options.what),
            cluster(chips),
            options.prompt,
            options.new,
            1 if options.batch is None else options.batch,
            bytes_of(options.memory) if options.memory else 0,
            tuple(dict.fromkeys(name.strip() for name in options.weights.split(","))),
            options.kv,
            options.engine,
        )
    )
    print(json.dumps(record(made), indent=1) if options.json else "\n".join(map(printable, lines(made))))
    if not made.fits:
        help_ = f"; would fit: {', '.join(made.remedies)}" if made.remedies else ""
        raise BudgetNotMet(f"{made.asked.model.name} does not fit on {made.asked.cluster.name}{help_}")


def _decoder(what: str) -> Architecture:
    """The decoder that a preset, a config.json or a recipe means."""
    from dataclasses import replace

    from burnish import recipe_files
    from burnish.architecture import architecture
    from burnish.presets import architecture_of
    from burnish.recipe import Recipe
    from burnish.recipes import shipped

    if what not in shipped() and ":" not in what and not what.endswith((".yaml", ".yml")):
        return architecture_of(what)
    recipe, _ = recipe_files.load_any(what, ())
    if not isinstance(recipe, Recipe):
        raise UserError(f"plan --serve {what}: a recipe of images has no decoder; burnish plan {what} plans it")
    return replace(architecture(recipe.model), name=what)


def _check_serving(options: Options) -> None:
    """Raises UserError for what is missing, or belongs to training."""
    if not options.what:
        raise UserError("plan --serve: name the model; --list models prints names")
    usual = Options("")
    if given := [name for name in TRAINING if getattr(options, name) != getattr(usual, name)]:
        written = ", ".join(name if name == "overrides" else f"--{name.strip('_').replace('_', '-')}" for name in given)
        raise UserError(f"plan --serve: {written} plan training; leave them out")
    if bool(options.chip) == bool(options.cluster):
        raise UserError(f"plan --serve {options.what}: give --chip h100-sxm --gpus 2, or --cluster; one of both")
    if options.gpus < 1:
        raise UserError(f"plan --serve: --gpus {options.gpus}; 1 or more")
