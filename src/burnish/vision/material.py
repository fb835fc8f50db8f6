"""Material of a recipe, by its task."""

from __future__ import annotations

from burnish.vision.picture_material import PictureMaterial
from burnish.vision.recipe import VisionRecipe
from burnish.vision.scan_material import ScanMaterial
from burnish.vision.task import Material


def material_of(recipe: VisionRecipe) -> Material:
    """The sources of a recipe, found and looked at. Raises UserError where there are none."""
    return PictureMaterial.of(recipe) if recipe.task == "detection" else ScanMaterial.of(recipe)
