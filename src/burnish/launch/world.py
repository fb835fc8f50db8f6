"""World: how a recipe's parallel degrees meet the ranks that were started, and which of its axes cross machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from burnish import recipe_files
from burnish.apply import refuse_planned
from burnish.errors import UserError
from burnish.recipe import Recipe, replace

AXES = ("pp", "dp", "cp", "tp")  # of ranks, from the slowest link to the fastest


def load_for(world: int, recipe: str, overrides: Iterable[str]) -> tuple[Recipe, dict[str, object]]:
    """`recipe_files.load_locked` for a start of `world` ranks: where data parallelism is left at 1, it takes the ranks that
    the other axes leave.

    Raises UserError when they do not come out, naming what would.
    """
    given = tuple(overrides)
    if world == 1 or any(override.startswith("parallel.dp=") for override in given):
        made, locked = recipe_files.load_locked(recipe, given)
        return for_world(made, world), locked
    # A recipe may say how many ranks split the states, which need not divide the one rank it has by default.
    rest, _ = recipe_files.load_locked(recipe, [o for o in given if not o.startswith("parallel.shard=")])
    if rest.parallel.world != world:
        given = (*given, f"parallel.dp={for_world(replace(rest, {'parallel.shard': 0}), world).parallel.dp}")
    return recipe_files.load_locked(recipe, given)


def for_world(recipe: Recipe, world: int) -> Recipe:
    """The recipe on `world` ranks. Raises UserError when they do not come out, naming what would."""
    asked = recipe.parallel
    if asked.world == world or (world == 1 and recipe.machine.chip is not None):  # planned for, and refused as that
        return recipe
    others = asked.world // asked.dp
    degrees = " x ".join(f"{axis} {size}" for axis in AXES if (size := getattr(asked, axis)) > 1)
    if world == 1:
        refuse_planned(recipe)
        raise UserError(
            f"{recipe.name}: parallel.{degrees} needs {asked.world} ranks, and this command is one; add --nproc {asked.world}"
        )
    if asked.dp == 1 and world % others == 0:
        return replace(recipe, {"parallel.dp": world // others})
    if asked.dp > 1:
        raise UserError(
            f"{recipe.name}: {world} ranks were started, parallel.{degrees} needs {asked.world}; start {asked.world}, or "
            f"change parallel.dp"
        )
    raise UserError(
        f"{recipe.name}: {world} ranks were started, which parallel.{degrees} does not divide; start a multiple of {others}"
    )


def axes_of(recipe: Recipe) -> list[tuple[str, int]]:
    """Axes of a recipe's ranks with their sizes, from the slowest link to the fastest; data parallel ones in two where only
    some of them split the states."""
    asked = recipe.parallel
    data = [("dp", asked.dp)]
    if asked.shard not in (0, asked.dp):
        data = [("dp copies", asked.dp // asked.shard), ("dp shards", asked.shard)]
    return [("pp", asked.pp), *data, ("cp", asked.cp), ("tp", asked.tp)]


def node_map(axes: Sequence[tuple[str, int]], per_node: int) -> str:
    """One line on where the axes lie, ranks being numbered with the last axis running fastest.

    An axis crosses machines where some group of ranks along it stands on more than one.
    """
    crossing: list[str] = []
    inside: list[str] = []
    below = 1
    for name, size in reversed(axes):
        if size > 1:
            (crossing if _crosses(below, size, per_node, _world(axes)) else inside).insert(0, f"{name} {size}")
        below *= size
    nodes = -(-below // per_node)
    places = f"{below} ranks on {nodes} machine{'s' * (nodes > 1)}"
    if not crossing:
        return f"{places}: {' x '.join(inside)}"
    within = f", {' x '.join(inside)} inside each" if inside else ""
    return f"{places}: {' x '.join(crossing)} across machines{within}"


def _world(axes: Sequence[tuple[str, int]]) -> int:
    return math.prod(size for _, size in axes)


def _crosses(apart: int, size: int, per_node: int, world: int) -> bool:
    """Whether a group of `size` ranks that stand `apart` is on more than one machine."""
    span = apart * size
    firsts = (start + offset for start in range(0, world, span) for offset in range(apart))
    return any(first // per_node != (first + span - apart) // per_node for first in firsts)
