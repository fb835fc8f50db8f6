"""Precision list: every kind of module of a recipe's model with the format its products, or its parameters, are in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from burnish.recipe import Recipe
from burnish.techniques import fp8, lora
from burnish.tensors import tensor_shapes

HIGH = "float32"


def precisions(recipe: Recipe) -> dict[str, str]:
    """Name of each kind of module, with stars for numbers -> format: of products, as 8-bit ones have it, of a matrix, or of
    the vectors of a module that has no matrix. Biases are vectors of float32 beside their matrix; adapters go with others."""
    compute, settings = recipe.precision.compute, recipe.techniques.get("fp8")
    matrix = HIGH if compute == "fp32" else compute
    shapes = {re.sub(r"[.]\d+", ".*", name): shape for name, shape in tensor_shapes(recipe.model).items()}
    inside = {name: f"layers.*.{module}" for name, module in lora.MATRICES.items()}
    there = [name for name, module in inside.items() if f"{module}.weight" in shapes and not _routed(recipe, module)]
    cast = [inside[name] for name in fp8.chosen(settings, there)] if isinstance(settings, fp8.Config) else []
    found: dict[str, str] = {}
    for name, shape in shapes.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight":
            found[module] = f"fp8 ({settings})" if module in cast else matrix if len(shape) > 1 else HIGH
    return found


def _routed(recipe: Recipe, module: str) -> bool:
    """Whether a matrix is one of experts."""
    return bool(recipe.model.experts) and ".mlp." in module


def lines(recipe: Recipe) -> Iterator[str]:
    """The list as a plan and a report print it, one line a format; none where everything is float32."""
    found = precisions(recipe)
    for form in dict.fromkeys(found.values()):
        if set(found.values()) != {HIGH}:
            yield f"in {form}: {', '.join(module for module, own in found.items() if own == form)}"
