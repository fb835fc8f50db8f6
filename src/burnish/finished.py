"""Finished: what can be done with a run's folder afterwards: write its model, let it generate, report again."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish import recipe_files, records, run_folder
from burnish.errors import MissingExtra, UserError
from burnish.recipe import Recipe
from burnish.records import Plan, Records
from burnish.report import make_report, write_report
from burnish.reported import Report
from burnish.run_folder import RunFolder

if TYPE_CHECKING:
    from burnish.models.decoder import Decoder


def require_torch(verb: str) -> None:
    """Raises MissingExtra naming the first package of the train extra that is not installed."""
    for package in ("torch", "safetensors", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(verb, "train", package)


def export(folder: Path, to: Path | None = None) -> dict[str, bool | float | str]:
    """Write a run's best checkpoint as a model folder (default RUN/model). Raises UserError when there is none."""
    require_torch("burnish export")
    from burnish.runnable import best_checkpoint, load_best

    place = run_folder.open_run(folder)
    recipe = recipe_files.load(str(place.lock))
    return export_model(recipe, place, load_best(recipe, best_checkpoint(place.checkpoints)), to or place.model)


def export_model(recipe: Recipe, place: RunFolder, model: Decoder, to: Path) -> dict[str, bool | float | str]:
    """Write `model` with the run's tokenizer into `to` and say whether it reads back equal."""
    from burnish.export.check import check_export
    from burnish.export.safetensors import save_folder

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
    return found


def generate(
    model: Path, prompts: list[str], settings: Mapping[str, Any], warn: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Continue prompts with the model of a folder (a run folder's model works too). Raises UserError as it reads it.

    `warn` is told when more is asked for than the model has seen in training.
    """
    require_torch("burnish generate")
    from burnish.data.tokenizer import Tokenizer
    from burnish.export.safetensors import TRAINED_LENGTH
    from burnish.load.model import load_folder
    from burnish.serve.generate import complete
    from burnish.serve.sampling import Sampling

    folder = model / "model" if (model / recipe_files.LOCK_NAME).is_file() else model
    if folder != model and not folder.is_dir():
        raise UserError(f"{model}: has no exported model yet; write it with `burnish export {model}`")
    decoder, config = load_folder(folder)
    tokenizer = Tokenizer.load(folder, config.eos)
    tokenizer.check_vocab(config.vocab)
    options = Sampling(eos=config.eos, **settings)
    encoded = [tokenizer.encode_prompt(prompt) for prompt in prompts]
    seen = json.loads((folder / "config.json").read_text(encoding="utf-8")).get(TRAINED_LENGTH)
    longest = max(map(len, encoded), default=0)
    if isinstance(seen, int) and longest + options.max_new_tokens > seen:
        fix = f"--max-new-tokens {seen - longest} stays within it" if longest < seen else "shorten the prompt"
        warn(
            f"{longest} tokens and {options.max_new_tokens} new ones are more than the {seen} that the model was trained "
            f"on at once; what it writes beyond them is likely to make no sense ({fix})"
        )
    done = complete(decoder.float(), encoded, options, decode=tokenizer.decode)
    return [prompt + (c.text) for prompt, c in zip(prompts, done, strict=True)]


def report(folder: Path) -> Report:
    """Write a run's report again from its plan and records."""
    place = run_folder.open_run(folder)
    if not place.plan.exists():
        raise UserError(f"{folder}: has no plan yet; run it with `burnish run`")
    plan = records.read(Plan, place.plan)
    made = records.read(Records, place.records) if place.records.exists() else None
    if made is None or made.status == "partly":
        made = _so_far(place, plan, made or Records(status="partly"))
    written = make_report(plan, made, recipe_yaml=recipe_files.to_yaml(recipe_files.load(str(place.lock))))
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
