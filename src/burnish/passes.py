"""Passes: the one ordered tuple of techniques, and the pairs that do not go together.

The order is the same for every model; each row says why it stands where it does. A new technique is one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from burnish.mesh import Mesh
from burnish.techniques import attention, checkpointing, context, experts, fp8, lora, pipeline, precision, tensor, zero

if TYPE_CHECKING:
    from burnish.recipe import Recipe
    from burnish.work import Work


def changed(config: Any, recipe: Recipe) -> bool:
    """Whether settings differ from their defaults: how most techniques are switched on."""
    return config is not None and config != type(config)()


def all_ranks(mesh: Mesh) -> Mesh:
    """The arrangement of ranks as it is: how most techniques see it."""
    return mesh


def token_ranks(mesh: Mesh) -> Mesh:
    """Ranks that hold the same parameters and see other tokens, data-parallel and context-parallel ones, as one axis."""
    return replace(mesh, dp=mesh.dp * mesh.cp, cp=1)


@dataclass(frozen=True)
class Technique:
    """A technique: its file, why it comes at its place, where a recipe keeps its settings, when it is in use, and how it
    sees the ranks.

    A section that holds more than the technique's settings is one that several share: each takes its own keys of it.
    Without a `section` the settings stand in the recipe's `techniques` under the technique's name, and the technique is
    used when they are there.
    """

    name: str
    module: ModuleType
    reason: str
    section: str = ""
    used: Callable[[Any, Recipe], bool] = changed
    view: Callable[[Mesh], Mesh] = all_ranks

    @property
    def plan_only(self) -> bool:
        """Predicted, not yet run."""
        return bool(getattr(self.module, "PLAN_ONLY", False))

    def settings(self, recipe: Recipe) -> Any:
        """The recipe's settings of this technique; None where a recipe does not name it."""
        if not self.section:
            config = recipe.techniques.get(self.name)
            if config is None or getattr(config, "seed", 0) is not None:
                return config
            return config.model_copy(update={"seed": recipe.train.seed})  # what draws and names no seed of its own
        value: Any = recipe
        for key in self.section.split("."):
            value = getattr(value, key)
        config = self.module.Config
        if isinstance(value, config):
            return value
        return config(**{key: getattr(value, key) for key in config.model_fields})

    def is_used(self, recipe: Recipe) -> bool:
        """Whether the recipe uses it."""
        config = self.settings(recipe)
        return self.used(config, recipe) if self.section else config is not None

    def settled(self, recipe: Recipe, work: Work, mesh: Mesh) -> Any:
        """The recipe's settings, checked against `work`, with what they leave to the technique (a budget) decided."""
        config = self.settings(recipe)
        self.module.check(config, work, mesh)
        settle = getattr(self.module, "settle", None)
        return settle(config, work, mesh) if settle else config


PASSES: tuple[Technique, ...] = (
    Technique(
        "attention", attention, "first: which kernel computes it decides what there is to keep, to round and to split"
    ),
    Technique("lora", lora, "before precision: what is frozen needs no master weight, and adapters need theirs"),
    Technique(
        "precision",
        precision,
        "before what keeps, moves or splits bytes: it decides how many there are",
        section="precision",
    ),
    Technique(
        "tensor",
        tensor,
        "before other splits: heads and vocabulary are whole here, and its ranks are the closest",
        section="parallel",
        used=lambda config, recipe: recipe.parallel.tp > 1,
    ),
    Technique(
        "context",
        context,
        "after tensor: it passes on the keys and values of a rank's own heads",
        section="parallel",
        used=lambda config, recipe: recipe.parallel.cp > 1,
    ),
    Technique(
        "experts",
        experts,
        "after context: a rank sends the tokens that it has, and a stage has whole sets of experts",
        section="parallel",
        used=lambda config, recipe: recipe.parallel.ep > 1,
    ),
    Technique(
        "fp8", fp8, "after what splits a matrix: it casts a rank's part; before what moves whole layers and bytes"
    ),
    Technique(
        "pipeline",
        pipeline,
        "after what splits a layer: it sends a rank's part of one; before checkpointing, which counts a stage's layers",
        section="parallel",
        used=lambda config, recipe: recipe.parallel.pp > 1,
    ),
    Technique(
        "checkpointing",
        checkpointing,
        "before sharding: a layer's second forward runs inside the gather that its backward makes",
        section="memory.checkpointing",
    ),
    Technique(
        "zero",
        zero,
        "last: it splits the states of whatever the others have made",
        section="parallel.zero",
        used=lambda config, recipe: config.stage > 0 or recipe.parallel.dp * recipe.parallel.cp > 1,
        view=token_ranks,
    ),
)

# Pairs that do not go together, with the reason a user is told.
DIVIDED = "adapters are put on whole layers; leave one of the two out"
REFUSED: dict[frozenset[str], str] = {
    frozenset({"lora", "experts"}): DIVIDED,
}
