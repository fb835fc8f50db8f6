"""Weights of 4 bits: matrices of the layers as integers with a scale a group, chosen by what the activations are like.

Idea    Lin et al. 2023, "AWQ: activation-aware weight quantization" (arXiv 2306.00978): a few input channels carry large
        activations, and errors of their weights count most. Scaling such a channel's weights up before rounding, and what
        feeds it down, leaves the model as it is and makes their error smaller. Which scale is best is searched for a few
        sequences of text; no weight is trained. `method` rtn rounds to nearest without a search.
Gain    a matrix takes bits + 16 / group bits an element (+ bits / group with a zero point) in place of 16 or 32, on disk
        and in memory. Reading weights is what bounds a small batch.
Price   a search of one forward of the samples and about two products a matrix and ratio. Products are made with the matrix
        turned back to floating point, which costs time here.
Limits  what reads activations only stays: embedding, head, norms, routers. `group` must divide every matrix's inputs. Of
        GPT-2 the feed-forward part's second matrix has no fold (a gelu lies before it), and there is no file format for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from burnish.errors import UserError
from burnish.mesh import Mesh, N
from burnish.section import Section
from burnish.techniques import lora
from burnish.weight_format import IntWeights, fits, held_bytes, legal_groups
from burnish.work import Block, Op, Work

if TYPE_CHECKING:
    from burnish.compress.awq_table import Table
    from burnish.compress.samples import Samples

# Operation of a layer -> its module there.
MATRICES = {**lora.MATRICES, "expert_up": "mlp.up", "expert_down": "mlp.down"}
FAMILIES: dict[str, tuple[str, ...]] = {"activation": ("activation",), "duo": ("duo",), "both": ("activation", "duo")}


class Config(Section):
    """`keep`: patterns of matrices that stay as they are, such as `mlp.down`. `dtype`: that of scales and of files."""

    method: Literal["awq", "rtn"] = "awq"
    bits: Literal[4] = 4
    group: Literal[32, 64, 128, -1] = 128
    symmetric: bool = True
    clip: bool = True
    scales: Literal["both", "activation", "duo"] = "both"
    ratios: int = Field(default=20, ge=1, le=1000)
    keep: tuple[str, ...] = ()
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"

    @property
    def scheme(self) -> IntWeights:
        """The integers that a file holds."""
        return IntWeights(self.bits, self.group, self.symmetric, self.dtype)


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for a group that does not divide the inputs of a matrix, for `keep` that leaves nothing to do, and for a
    model of several ranks."""
    if np.any(mesh.world > 1):
        raise UserError(f"techniques.awq: a model is compressed on one rank, not on {mesh.world}; train, then compress")
    if not _matrices(work):
        raise UserError("techniques.awq: the model has no matrix that is compressed; a decoder has")
    check_left(config, work, "awq")
    left = [op for block, op in _matrices(work) if kept_layers(config, op, block.layers) < block.layers]
    sizes = tuple(sorted({int(op.shapes[0][1]) for op in left}))
    if config.group > 0 and (odd := [size for size in sizes if size % config.group]):
        raise UserError(
            f"techniques.awq.group {config.group} does not divide {odd[0]} inputs of a matrix; {legal_groups(sizes)}"
        )


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with matrices as bytes of integers, scales and zero points; nothing is trained any more."""
    held: N = 0

    def edit(block: Block) -> Block:
        nonlocal held
        ops = []
        for op in block.ops:
            if op.name in MATRICES:
                left = kept_layers(config, op, block.layers)
                plain = work.bytes.parameter * prod(op.shapes[0])
                small = held_bytes(config.scheme, (int(op.shapes[0][0]), int(op.shapes[0][1])))
                held = held + (block.layers - left) * small + left * plain
                op = replace(op, shapes=op.shapes[1:])
            ops.append(replace(op, trained=False))
        return replace(block, ops=tuple(ops))

    made = work.edit(edit)
    return replace(made, gathered=made.gathered + held)


def check_left(config: Config, work: Work, name: str) -> None:
    """Raises UserError where `keep` fits every matrix: a folder as large as before would be no success."""
    counts = [(block.layers, kept_layers(config, op, block.layers)) for block, op in _matrices(work)]
    if all(layers == kept for layers, kept in counts):
        raise UserError(
            f"techniques.{name}.keep {list(config.keep)} fits every matrix, so that none would be compressed"
        )


def _matrices(work: Work) -> list[tuple[Block, Op]]:
    return [(block, op) for block in work.blocks for op in block.ops if op.name in MATRICES]


def kept_layers(config: Config, op: Op, layers: N) -> int:
    """In how many layers a pattern keeps this operation's matrix."""
    if not config.keep:
        return 0
    return sum(fits(f"layers.{number}.{MATRICES[op.name]}", config.keep) for number in range(int(layers)))


def search(
    config: Config,
    model: Any,
    samples: Samples | None,
    state: Path | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Table | None:
    """The scales and clips for a decoder and samples of what it will read; None for `method` rtn, which needs none.

    `state`: a folder from which a search that was killed goes on. Raises UserError as `compress.awq_search` does.
    """
    if config.method == "rtn":
        return None
    from burnish.compress.awq_scales import Settings
    from burnish.compress.awq_search import search_model

    if samples is None:
        raise UserError("techniques.awq: a search needs samples of text; method rtn needs none")
    settings = Settings(config.scheme, FAMILIES[config.scales], config.ratios, config.clip)
    return search_model(model, samples, settings, config.model_dump(mode="json"), state, told)


def apply(config: Config, trainable: Any, mesh: Mesh, table: Table | None = None) -> Any:
    """Put integers in the place of the matrices of a decoder, or of a trainable's; `table` is what `search` gave.

    Raises UserError for a table of another model or other settings, and for none where one is needed.
    """
    from burnish.compress.awq_apply import compress_model
    from burnish.compress.fingerprint import model_fingerprint

    if config.method == "awq" and table is None:
        raise UserError("techniques.awq: no table of scales; search for one, or use method rtn")
    for model in [part.model for part in trainable.parts] if hasattr(trainable, "parts") else [trainable]:
        if table is not None:
            table.check(model_fingerprint(model), config.model_dump(mode="json"))
        compress_model(model, config.scheme, config.keep, table)
    return trainable
