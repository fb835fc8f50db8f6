"""Runnable: a recipe made into the thing that is trained, and the job that trains it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from burnish import apply, out_of_memory, run_folder
from burnish.crew import ALONE, Crew, check_equal, started_crew
from burnish.data.sampler import rank_share
from burnish.describe import batch_arithmetic
from burnish.errors import UserError
from burnish.hardware import detect
from burnish.launch.environment import RankPlace
from burnish.load.model import config_of, load_model
from burnish.load.source import open_model
from burnish.lock import versions
from burnish.measure import measured_keys, observed_step
from burnish.models.attention import check_attention
from burnish.models.decoder import Decoder
from burnish.recipe import Recipe, replace
from burnish.recipe_files import differences
from burnish.records import Plan
from burnish.train.loop import Job
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer, lr_at
from burnish.train.state import latest, load_weights, read_state
from burnish.train.step import StepResult, Trainable, plain_trainable

if TYPE_CHECKING:
    from burnish.data.prepare import Prepared

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(wanted: str, local: int = 0) -> tuple[str, str]:
    """The device to run on and how it was chosen; the `local`-th rank of a machine takes its `local`-th accelerator.

    Raises UserError for CUDA where there is none, or one too few.
    """
    there = torch.cuda.is_available()
    if there and wanted != "cpu":
        if local >= torch.cuda.device_count():
            raise UserError(f"rank {local} of this machine has no CUDA device: {torch.cuda.device_count()} are here")
        torch.cuda.set_device(local)
    if wanted == "cuda" and not there:
        raise UserError("machine.device cuda: no CUDA device was found here; use cpu or auto")
    if wanted == "auto":
        return ("cuda", "CUDA found") if there else ("cpu", "no CUDA device found")
    return wanted, "as machine.device says"


def processor() -> str:
    """The processor and its vector instructions, which decide how sums round."""
    return f"{detect().name}, {torch.backends.cpu.get_cpu_capability()}"


def check_runnable(recipe: Recipe) -> None:
    """Raises UserError for a recipe that can be planned but not run here, and for a start that does not fit it."""
    if recipe.machine.chip is not None:
        raise UserError(
            f"{recipe.name}: machine.chip {recipe.machine.chip} is planned for, not run on; set machine.chip=null to run here"
        )
    apply.refuse_planned(recipe)
    rank_share(recipe.train.global_batch, recipe.parallel.dp)
    if recipe.train.init is not None:
        theirs = config_of(open_model(recipe.train.init)).model_dump()
        if changed := differences(recipe.model.model_dump(), theirs):
            raise UserError(f"train.init {recipe.train.init}: another shape than the recipe's model ({changed[0]})")


def join(place: RankPlace, recipe: Recipe, data: Prepared, device: str) -> Crew:
    """Meet the other ranks, and make sure that all have the same recipe and data.

    Raises UserError, on every rank, naming the rank and the key that differ.
    """
    if place.alone:
        return ALONE
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    crew = started_crew()
    mine = recipe.model_dump(mode="json") | {"data_fingerprints": data.fingerprints, "versions": versions()}
    check_equal(crew, mine, differences)
    return crew


def leave(crew: Crew) -> None:
    """Part from the other ranks, once all are here."""
    if crew.group is not None:
        crew.largest(0)
        dist.destroy_process_group()


def make_loss(recipe: Recipe, device: str) -> LanguageModelLoss:
    """The model with its loss. The attention that will run, in float32 for judging and in the format of products, is first
    compared with a plain softmax.

    Weights are drawn from the recipe's seed, or read from `train.init`.
    """
    torch.set_num_threads(recipe.machine.threads)
    for dtype in {torch.float32, FORMATS[recipe.precision.compute]}:
        check_attention(device, dtype)
    torch.manual_seed(recipe.train.seed)
    if recipe.train.init is None:
        model = Decoder(recipe.model, torch.Generator().manual_seed(recipe.train.seed))
    else:
        model, _ = load_model(open_model(recipe.train.init), dtype=torch.float32, integers=False)
    return LanguageModelLoss(model.to(device))


def make_trainable(recipe: Recipe, loss: LanguageModelLoss, measured: dict[str, float]) -> Trainable:
    """Optimizer and step of one process, with the recipe's techniques applied in their order.

    The parameters of the whole model are counted into `measured` before techniques divide them or add to them.
    """
    measured["parameters"] = float(sum(p.numel() for p in loss.parameters()))
    return apply.apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip))


def settle_compile(recipe: Recipe, loss: LanguageModelLoss, device: str, crew: Crew = ALONE) -> tuple[Recipe, str]:
    """Compile the layers as `train.compile` asks; `measure` becomes `on` or `off` by what pays here, with the reason.

    Timed on one micro batch of random tokens, so that no state of the run changes; on many ranks by the first of them.
    """
    from burnish.train.compiled import compile_if_it_pays, compile_layers

    if crew.world > 1 and recipe.train.compile == "measure":
        recipe, reason = crew.first(lambda: settle_compile(recipe, loss, device))
        return (recipe if crew.leads else settle_compile(recipe, loss, device)[0]), reason
    if recipe.train.compile != "measure":
        if recipe.train.compile == "on":
            compile_layers(loss.model)
        return recipe, ""
    shape = (recipe.train.micro_batch, recipe.data.seq)
    ids = torch.randint(recipe.model.vocab, shape, generator=torch.Generator().manual_seed(0)).to(device)

    def once() -> None:
        loss(ids, ids).backward()
        loss.zero_grad(set_to_none=True)

    outcome = compile_if_it_pays(loss.model, once, recipe.train.steps * batch_arithmetic(recipe)["micro_batches"])
    return replace(recipe, {"train.compile": "on" if outcome.compiled else "off"}), outcome.reason


def make_job(
    recipe: Recipe,
    folder: Path,
    data: Prepared,
    trainable: Trainable,
    measured: dict[str, float],
    crew: Crew = ALONE,
) -> Job:
    """What the loop needs: batches and learning rates as functions of the step, evaluation, and where files go.

    Of each step a rank takes the rows that fall to it, as `data_place` says.

    The first step of this process is observed, and what it did is put into `measured`.
    """
    from burnish.data.packing import Rows
    from burnish.data.sampler import eval_batches, step_batches
    from burnish.train.evaluate import evaluate, evaluate_together

    settings, (index, count) = recipe.train, data_place(recipe, crew.rank)
    rows = Rows(data.train, recipe.data.seq)
    _observe_first(trainable, measured)

    def judge() -> tuple[float, float]:
        assert data.heldout is not None
        batches = eval_batches(Rows(data.heldout, recipe.data.seq), settings.micro_batch)
        alone = crew.world == 1
        score = (
            evaluate(trainable.parts[0], batches)
            if alone
            else evaluate_together(trainable, list(batches), index, count)
        )
        return score.loss, score.bits_per_byte(data.heldout.total_bytes)

    return Job(
        steps=settings.steps,
        batches=lambda step: step_batches(
            rows, settings.seed, step, settings.global_batch, settings.micro_batch, index, count
        ),
        lr=lambda step: lr_at(step, recipe.schedule, settings.steps, recipe.optim.lr),
        folder=folder,
        global_batch=settings.global_batch,
        identity=run_folder.identity(recipe) | {"data_fingerprints": data.fingerprints},
        evaluate=judge if data.heldout is not None else None,
        eval_every=settings.eval_every,
        checkpoint_every=settings.checkpoint_every,
        keep=settings.keep,
        tensorboard=settings.tensorboard,
        crew=crew,
    )


def data_place(recipe: Recipe, rank: int) -> tuple[int, int]:
    """Which of the ranks that see different rows `rank` is, and how many they are."""
    asked = recipe.parallel
    return rank // (asked.tp * asked.cp) % asked.dp, asked.dp


def _observe_first(trainable: Trainable, measured: dict[str, float]) -> None:
    """Make the next step of `trainable` an observed one; the steps after it run untouched."""
    plain = trainable.step

    def step(micros: list[Any], lr: float) -> StepResult:
        trainable.step = plain
        result, seen = observed_step(trainable, micros, lr)
        measured.update(measured_keys(seen))
        return result

    trainable.step = step


def best_checkpoint(folder: Path) -> Path:
    """The best checkpoint of a run, else its last one.

    Raises UserError when there is none, and when one that might be meant is damaged: an older one in its place would be
    another model than the report judged.
    """
    last, skipped = latest(folder)
    if skipped:
        raise UserError(f"{skipped[0].removeprefix('skipped ')}; run the recipe again to make it anew, then export")
    if last is None:
        raise UserError(f"{folder}: holds no whole checkpoint; train first, with train.checkpoint_every")
    best = read_state(last).best
    chosen = last if best is None else last.with_name(f"step-{best.step:06d}")
    if not chosen.is_dir():
        raise UserError(f"{chosen}: the best checkpoint is missing; run the recipe again to make it anew, then export")
    return chosen


def load_best(recipe: Recipe, checkpoint: Path) -> Decoder:
    """The model of a checkpoint, on the CPU in float32, with the adapters it was trained with."""
    loss = LanguageModelLoss(Decoder(recipe.model, torch.Generator().manual_seed(recipe.train.seed)))
    for technique in apply.passes(recipe):
        if hasattr(technique.module, "dress"):  # it trained modules of its own
            technique.module.dress(technique.settings(recipe), loss.model)
    load_weights(checkpoint, loss)
    return loss.model


def say_out_of_memory(error: BaseException, recipe: Recipe, plan: Plan, device: str) -> str:
    """One line on a failed allocation: what was asked for, what was there, and what would help."""
    allocated = reserved = 0.0
    if device.startswith("cuda"):
        allocated, reserved = float(torch.cuda.memory_allocated()), float(torch.cuda.memory_reserved())
    kinds = {key: size for key, size in plan.predicted.items() if key.startswith("memory.") and key != "memory.peak"}
    largest = max(kinds, key=lambda key: kinds[key]).removeprefix("memory.")
    asked = out_of_memory.requested(str(error))
    memory = out_of_memory.Memory(asked, allocated, reserved, plan.capacity or 0.0, out_of_memory.expandable())
    return out_of_memory.explain(memory, largest, recipe.memory.checkpointing.mode, recipe.train.micro_batch)
