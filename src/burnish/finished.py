"""Finished: what can be done with a run's folder afterwards: write its model, let it generate, report again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from burnish import recipe_files, records, run_folder
from burnish.errors import MissingExtra, UserError
from burnish.recipe import Recipe
from burnish.records import Plan, Records
from burnish.report import make_report, write_report
from burnish.reported import Report
from burnish.run_folder import RunFolder

if TYPE_CHECKING:
    from burnish.export.onnx_choices import Choices
    from burnish.models.decoder import Decoder

VISION = ("monai", "nibabel", "pydicom", "nrrd", "PIL", "scipy", "torch_pruning", "pycocotools")


def require_torch(verb: str) -> None:
    """Raises MissingExtra naming the first package of the train extra that is not installed."""
    for package in ("torch", "safetensors", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(verb, "train", package)


def require_vision(verb: str) -> None:
    """Raises MissingExtra naming the first package of the vision extra that is not installed."""
    for package in ("torch", "safetensors", *VISION):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(verb, "vision", package)


def require_pictures(verb: str) -> None:
    """Raises MissingExtra where pictures cannot be opened."""
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtra(verb, "vision", "PIL")


def export(
    source: str | Path, to: Path | None = None, form: str | None = None, onnx: Choices | None = None
) -> dict[str, bool | float | str]:
    """Write a run's best checkpoint as a model folder (default RUN/model), or any other model in another format.

    `form`: what elements are stored as; a `to` that ends in .gguf is a GGUF file. `onnx`: write it as ONNX, so chosen. Raises
    UserError when there is none.
    """
    require_torch("burnish export")
    from burnish.export.convert import GGUF, convert
    from burnish.load.source import open_model

    path = Path(source)
    if onnx is not None:
        return _as_onnx(path, source, to, form, onnx)
    if not (path / recipe_files.LOCK_NAME).is_file():
        if to is None:
            raise UserError(f"{source}: is no run folder; say where the model goes with --to FOLDER or --to FILE.gguf")
        return convert(open_model(source), to, form)
    if to is not None and to.suffix.lower() == GGUF:
        _export_run(path, None, None)
        return convert(open_model(path), to, form) | _adapters_in(path, to)
    return _export_run(path, to, form)


def onnx_choices(to: Path | None, form: str | None, given: tuple[str, int, bool]) -> Choices | None:
    """How an ONNX file shall be, of the options of the command line; None where none is asked for.

    Raises UserError for a format that there is not, and for options of ONNX beside another one.
    """
    if form is None and (to is None or to.suffix.lower() != ".onnx"):
        if given != ("float32", 1, False):
            raise UserError("--head, --accuracy-level and --force are options of --format onnx and onnxruntime")
        return None
    require_torch("burnish export")
    from burnish.export.onnx_choices import PORTABLE, Choices

    made = Choices(PORTABLE if form is None else form, *given)
    made.check()
    return made


def _as_onnx(
    path: Path, source: str | Path, to: Path | None, form: str | None, onnx: Choices
) -> dict[str, bool | float | str]:
    if to is None or form not in (None, "float32"):
        what = "say where the file goes with --to FILE.onnx or --to FOLDER" if to is None else f"--dtype {form}"
        raise UserError(f"{source}: {what}" + ("" if to is None else ": an ONNX file has float32 beside its integers"))
    from burnish.export.onnx_convert import convert_onnx
    from burnish.load.source import open_model

    if (path / recipe_files.LOCK_NAME).is_file():
        _export_run(path, None, None)
    return convert_onnx(open_model(source), to, onnx)


def _export_run(folder: Path, to: Path | None, form: str | None) -> dict[str, bool | float | str]:
    from burnish.runnable import best_checkpoint, load_best

    place = run_folder.open_run(folder)
    recipe = recipe_files.load(str(place.lock), [] if form is None else [f"export.dtype={form}"])
    return export_model(recipe, place, load_best(recipe, best_checkpoint(place.checkpoints)), to or place.model)


def export_model(recipe: Recipe, place: RunFolder, model: Decoder, to: Path) -> dict[str, bool | float | str]:
    """Write `model` with the run's tokenizer into `to` and say whether it reads back equal.

    Adapters are merged in, and beside the run's own model kept alone as well, where nothing else was trained.
    """
    from burnish.export.adapter import save_adapter
    from burnish.export.check import check_export
    from burnish.export.merge import kept, merge
    from burnish.export.safetensors import save_folder
    from burnish.load.model import load_folder

    adapters, changed = merge(model)
    if adapters and to == place.model and not getattr(recipe.techniques["lora"], "train"):  # noqa: B009
        save_adapter(adapters, recipe.model, place.adapter, recipe.train.init)
    settings = recipe.export
    size = int(settings.shard_gib * 2**30)
    save_folder(
        model,
        recipe.model,
        to,
        dtype=settings.dtype,
        tokenizer=place.tokenizer,
        write_tied=settings.write_tied,
        shard_bytes=size,
        trained_length=recipe.data.seq,
    )
    found = check_export(model, to, place.tokenizer)
    if found.pop("weights_different"):
        raise RuntimeError(f"{to}: the exported weights do not read back as they were written")
    return found | changed | (kept(adapters, model, load_folder(to)[0]) if adapters else {})


def _adapters_in(folder: Path, file: Path) -> dict[str, bool | float | str]:
    """What a GGUF file made of a run's model keeps of its adapters."""
    from burnish.export.merge import kept, merge
    from burnish.load.model import load_model
    from burnish.load.source import open_model
    from burnish.runnable import best_checkpoint, load_best

    place = run_folder.open_run(folder)
    model = load_best(recipe_files.load(str(place.lock)), best_checkpoint(place.checkpoints))
    adapters, _ = merge(model)
    return kept(adapters, model, load_model(open_model(file))[0]) if adapters else {}


def report(folder: Path) -> Report:
    """Write a run's report again from its plan and records."""
    place = run_folder.open_run(folder)
    if not place.plan.exists():
        raise UserError(f"{folder}: has no plan yet; run it with `burnish run`")
    plan = records.read(Plan, place.plan)
    made = records.read(Records, place.records) if place.records.exists() else None
    if made is None or made.status == "partly":
        made = _so_far(place, plan, made or Records(status="partly"))
    written = make_report(plan, made, recipe_yaml=recipe_files.to_yaml(recipe_files.load_any(str(place.lock))[0]))
    write_report(written, folder)
    return written


def _so_far(place: RunFolder, plan: Plan, made: Records) -> Records | None:
    """Records of a run that has not ended, with the steps in its log; None when it has made none."""
    from burnish.train.metrics import read_metrics

    curve, evals = read_metrics(place.metrics) if place.metrics.exists() else ((), ())
    if not curve:
        return None
    note = (
        f"{curve[-1].step} of {plan.batch['steps']} steps are done; the command that started this run goes on with it"
    )
    seconds = made.seconds | {"train": sum(step.seconds for step in curve)}
    return made.model_copy(update={"curve": curve, "evals": evals, "seconds": seconds, "notes": (*made.notes, note)})
