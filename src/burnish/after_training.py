"""After training: the exported model, its quality beside a simple one, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.errors import BudgetNotMet
from burnish.finished import export_model
from burnish.found import Found, saved
from burnish.progress import Screen
from burnish.recipe import Recipe
from burnish.records import Sample
from burnish.run_folder import RunFolder

if TYPE_CHECKING:
    from burnish.data.prepare import Prepared
    from burnish.train.loop import Outcome


def finish(
    recipe: Recipe, place: RunFolder, data: Prepared, outcome: Outcome, found: Found, screen: Screen
) -> BudgetNotMet | None:
    """What comes after training: the exported model, its quality, what it writes, and a smaller one where the recipe asks.

    Gives what says that the smaller one lost more than it may; all else is done then too.
    """
    from burnish.measure import clock

    with clock(found.seconds, "export and check"):
        _export(recipe, place, outcome, found)
    with clock(found.seconds, "judge"):
        _judge(recipe, data, outcome, found)
    with clock(found.seconds, "sample"):
        found.samples = _samples(recipe, place)
    return _compress(recipe, place, found, screen) if recipe.compress.used else None


def _compress(recipe: Recipe, place: RunFolder, found: Found, screen: Screen) -> BudgetNotMet | None:
    """Compress the exported model. Text to calibrate and to judge on is the recipe's own unless it names other."""
    from burnish.compress.flow import compress
    from burnish.compress.subject import subject_of
    from burnish.compress.verify import OverBudget
    from burnish.load.source import open_model

    own: dict[str, Any] = {
        "calibrate": recipe.compress.calibrate or recipe.data.train,
        "text_field": recipe.data.text_field,
        "tp": recipe.compress.tp or recipe.parallel.tp,
    }
    if not (recipe.compress.text or recipe.compress.task):
        own["text"] = recipe.data.heldout
    asked = recipe.compress.model_copy(update=own)
    subject = subject_of(recipe.name, open_model(place.model), "cpu")
    try:
        found.verified, seconds = compress(subject, asked, place.compressed, screen)
    except OverBudget as error:
        found.verified = error.verified
        found.notes.append(str(error))
        return error
    found.seconds |= {f"compress: {stage}": value for stage, value in seconds.items()}
    size = next(cost for cost in found.verified.costs if cost.key == "file.bytes")
    assert size.compressed is not None
    found.measured["compressed.bytes"] = size.compressed
    found.checks["compressed_reads_back"] = True
    return None


def _export(recipe: Recipe, place: RunFolder, outcome: Outcome, found: Found) -> None:
    """Write the best weights as a model folder, load it again and compare."""
    from burnish.runnable import load_best

    model = load_best(recipe, outcome.best)
    found.checks |= export_model(recipe, place, model, place.model)
    weights = sorted(place.model.glob("*.safetensors"))
    found.files = tuple(saved(path) for path in sorted(place.model.iterdir()))
    found.measured["file.bytes"] = float(sum(path.stat().st_size for path in weights))


def _judge(recipe: Recipe, data: Prepared, outcome: Outcome, found: Found) -> None:
    """Bits per byte on the held-out text beside a bigram model of the same tokens."""
    if data.heldout is None or not outcome.evals:
        return
    from burnish.data.kneser_ney import bits_per_byte

    best = min(outcome.evals, key=lambda evaluation: evaluation.loss)
    assert best.bits_per_byte is not None, "held-out text is judged in bits per byte"
    baseline = bits_per_byte(data.train, data.heldout, recipe.model.vocab)
    found.quality |= {
        "bits_per_byte": best.bits_per_byte,
        "baseline_bits_per_byte": baseline,
        "baseline": "Kneser-Ney bigram, same tokenizer, same text",
        "better_than_baseline_percent": 100 * (1 - best.bits_per_byte / baseline),
    }


def _samples(recipe: Recipe, place: RunFolder) -> tuple[Sample, ...]:
    """What the exported model writes after each prompt of the recipe."""
    prompts = list(recipe.export.prompts)
    if not prompts:
        return ()
    settings = {
        "max_new_tokens": recipe.export.sample_tokens,
        "temperature": 0.7,
        "top_k": 40,
        "seed": recipe.train.seed,
    }
    from burnish.serve.prompts import continued

    texts = continued(place.model, prompts, settings)
    return tuple(Sample(prompt=prompt, text=text[len(prompt) :]) for prompt, text in zip(prompts, texts, strict=True))
