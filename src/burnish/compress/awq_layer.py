"""One layer's search: statistics of what its matrices read, a scale a fold, a clip a group, and proof that the folds are none.

Every fold is searched on the layer as it is: a scale divides outputs of what comes before, and an output's integers do not
depend on its scale. The folded layer must then give what the layer gave, before anything is rounded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from burnish.compress import clip
from burnish.compress.awq_scales import IDENTITY, MARGIN, Best, Candidate, Part, Settings, search
from burnish.compress.awq_stream import Passing, readers, through, watching
from burnish.compress.awq_table import FoldRow, Layer, MatrixRow
from burnish.compress.fold import Fold, apply_fold, experts_of, folds_of, matrices_of, pooled, widened
from burnish.compress.gram import Gram, loss
from burnish.compress.rtn import integers
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import dequantize

Grams = dict[str, list[Gram]]  # matrix -> what it reads, one for each expert
ALIKE = 1e-4  # relative difference that rounding may make between a layer and its folded self
ODD = 0.01  # share of tokens that may differ by more: a near tie of a router falls the other way


def search_layer(
    model: Decoder, number: int, batches: list[Passing], chosen: tuple[str, ...], settings: Settings
) -> Layer:
    """What is best for layer `number`; `batches` become what the next layer reads. `chosen`: its matrices to compress.

    Raises UserError naming the matrix whose weight or input, or the layer whose output, is not finite.
    """
    block: Any = model.layers[number]
    where = f"layers.{number}"
    for name, parameter in block.named_parameters():
        _finite(parameter, f"{where}.{name}: the weight")
    first = batches[0]
    grams = gather(model, number, block, batches)
    for name, own in grams.items():
        for gram in own:
            _finite(gram.total, f"{where}.{name}: its input")
    for batch in batches:
        _finite(batch.states, f"{where}: its output")
    folds = [fold for fold in folds_of(model.shape) if set(fold.matrices) & set(chosen)]  # type: ignore[arg-type]
    for fold in folds:
        _check_readers(model, number, block, fold, first)
    rows = [row for fold in folds for row in _fold_rows(number, block, fold, grams, chosen, settings)]
    folded = copy.deepcopy(block)
    apply_rows(folded, folds, rows)
    _check_same(model, number, folded, first, batches[0].states)
    inputs = {name: _scales(block, name, folds, rows) for name in chosen}
    matrices = [_matrix_row(where, block, folded, name, grams[name], inputs[name], settings) for name in chosen]
    return Layer(folds=tuple(rows), matrices=tuple(matrices))


def gather(model: Decoder, number: int, block: Any, batches: list[Passing]) -> Grams:
    """The Gram statistics of every matrix; those that read the same share one. `batches` go through the layer."""
    matrices = matrices_of(model.shape)  # type: ignore[arg-type]
    shared = {name: fold.matrices[0] for fold in folds_of(model.shape) for name in fold.matrices}  # type: ignore[arg-type]
    watched = tuple(dict.fromkeys(shared.get(name, name) for name in matrices))
    grams: Grams = {
        name: [Gram(block.get_submodule(name).weight.shape[1]) for _ in range(experts_of(block, name))]
        for name in watched
    }
    masks: list[Tensor] = []
    with watching(block, watched, lambda: masks[-1], lambda name, expert, x: grams[name][expert].add(x)):
        for place, batch in enumerate(batches):
            masks[:] = [batch.mask]
            batches[place] = batch._replace(states=through(model, number, block, batch))
    return {name: grams[shared.get(name, name)] for name in matrices}


def _finite(tensor: Tensor, what: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise UserError(f"{what} is not finite, so that nothing can be searched; mend the model or the samples")


def _check_readers(model: Decoder, number: int, block: Any, fold: Fold, batch: Passing) -> None:
    """A norm whose scale not all that reads it takes would change the model."""
    if fold.source.endswith("norm") and (found := readers(model, number, block, fold.source, _few(batch))) != set(
        fold.readers
    ):
        raise RuntimeError(f"layers.{number}.{fold.source} is read by {sorted(found)}, the fold scales {fold.readers}")


def _few(batch: Passing) -> Passing:
    """The first row's first positions."""
    rows = batch.mask[:1].clone()
    rows[:, 8:] = False
    return Passing(batch.states[: int(rows.sum())], rows, batch.ids[:1])


def parts_of(block: Any, name: str, grams: list[Gram], tokens: int) -> Iterator[Part]:
    """A matrix and what it reads, or each expert's."""
    weights = block.get_submodule(name).weight.detach().float().chunk(len(grams))
    for weight, gram in zip(weights, grams, strict=True):
        yield Part(weight, gram.total / max(tokens, 1))


def _fold_rows(
    number: int, block: Any, fold: Fold, grams: Grams, chosen: tuple[str, ...], settings: Settings
) -> Iterator[FoldRow]:
    """The best scale of a fold; of experts that follow one another, each expert's."""
    names = [name for name in fold.matrices if name in chosen]
    own = grams[names[0]]
    tokens = sum(gram.tokens for gram in own)
    parts = [list(parts_of(block, name, grams[name], tokens)) for name in names]
    if len(own) > 1 and not fold.source.endswith("norm"):
        for expert, (gram, *some) in enumerate(zip(own, *parts, strict=True)):
            yield _row(number, fold, expert, _best(block, fold, some, gram.magnitude, gram.tokens, settings))
        return
    magnitude = sum((gram.sizes for gram in own), torch.zeros(())) / max(tokens, 1)
    seen = [part for some in parts for part, gram in zip(some, own, strict=True) if gram.tokens]
    yield _row(number, fold, 0, _best(block, fold, seen, magnitude.float(), tokens, settings))


def _best(block: Any, fold: Fold, parts: list[Part], magnitude: Tensor, tokens: int, settings: Settings) -> Best:
    channels = pooled(magnitude, block, fold)
    if not tokens:
        return Best(Candidate(IDENTITY, 0.0, torch.ones_like(channels)), 0.0, 0.0)
    return search(
        parts, channels, settings, lambda scale: widened(scale, block, fold), lambda wide: pooled(wide, block, fold)
    )


def _row(number: int, fold: Fold, expert: int, best: Best) -> FoldRow:
    scale = () if best.candidate.family == IDENTITY else tuple(best.candidate.scale.tolist())
    return FoldRow(
        layer=number,
        source=fold.source,
        expert=expert,
        family=best.candidate.family,
        ratio=best.candidate.ratio,
        rounded=best.rounded,
        loss=best.loss,
        scale=tuple(float(f"{value:.6g}") for value in scale),
    )


def scale_of(block: Any, fold: Fold, rows: list[FoldRow]) -> Tensor | None:
    """The scale of a fold's channels [C], or of each expert's [E, C]; None where there is none."""
    own = sorted((row for row in rows if row.source == fold.source), key=lambda row: row.expert)
    if not any(row.scale for row in own):
        return None
    width = max(len(row.scale) for row in own)
    made = torch.tensor([row.scale or (1.0,) * width for row in own])
    return made if len(own) > 1 else made[0]


def apply_rows(block: Any, folds: list[Fold] | tuple[Fold, ...], rows: list[FoldRow]) -> None:
    """Fold the scales of a table into a layer, in place."""
    for fold in folds:
        if (scale := scale_of(block, fold, rows)) is not None:
            apply_fold(block, fold, scale)


def _check_same(model: Decoder, number: int, folded: Any, batch: Passing, wanted: Tensor) -> None:
    """Raises RuntimeError where the folded layer gives something else: a fold that is none must not be rounded."""
    apart = (through(model, number, folded, batch) - wanted).abs().amax(-1)
    odd = apart > ALIKE * wanted.abs().amax()
    allowed = ODD * len(odd) if model.shape.experts else 0
    if int(odd.sum()) > allowed:
        raise RuntimeError(f"layers.{number}: its folds change what it gives by {float(apart.max()):.3g}")


def _scales(block: Any, name: str, folds: list[Fold], rows: list[FoldRow]) -> Tensor | None:
    """By what a matrix's inputs are divided once all is folded [I] or [E, I]."""
    for fold in folds:
        if name in fold.matrices and (scale := scale_of(block, fold, rows)) is not None:
            return widened(scale, block, fold)
    return None


def _matrix_row(
    where: str, block: Any, folded: Any, name: str, grams: list[Gram], inputs: Tensor | None, settings: Settings
) -> MatrixRow:
    """Clip a folded matrix, and measure what becomes of it and what rounding alone makes of it."""
    scheme = settings.scheme
    tokens = sum(gram.tokens for gram in grams)
    plain = list(parts_of(block, name, grams, tokens))
    after = folded.get_submodule(name).weight.detach().float().chunk(len(grams))
    scales = [inputs] * len(grams) if inputs is None or inputs.dim() == 1 else list(inputs)
    energy = rounded = found = 0.0
    texts = []
    for part, weight, scale, gram in zip(plain, after, scales, grams, strict=True):
        own = part.gram if scale is None else part.gram / scale / scale.unsqueeze(-1)
        index = torch.zeros(len(weight), scheme.groups(weight.shape[1]), dtype=torch.int64)
        if settings.clip and gram.tokens and name.rsplit(".", 1)[-1] not in clip.UNCLIPPED:
            index = _clipped(weight, own, settings, index)
        energy += loss(part.weight, part.gram)
        rounded += _stored_loss(part.weight, part.gram, settings, 1.0)
        found += _stored_loss(weight, own, settings, clip.ratios(index))
        texts.append(clip.written(index) if index.any() or len(grams) > 1 else "")
    return MatrixRow(
        name=f"{where}.{name}",
        energy=energy,
        rounded=rounded,
        loss=found,
        clip=" ".join(texts),
        unseen=tuple(expert for expert, gram in enumerate(grams) if not gram.tokens),
    )


def _clipped(weight: Tensor, gram: Tensor, settings: Settings, plain: Tensor) -> Tensor:
    """The clip that is best for each group alone, unless all of them together do not gain."""
    index = clip.search(weight, gram, settings.scheme)
    found, before = (_stored_loss(weight, gram, settings, clip.ratios(own)) for own in (index, plain))
    return index if found < before * (1 - MARGIN) else plain


def _stored_loss(weight: Tensor, gram: Tensor, settings: Settings, ratios: Tensor | float) -> float:
    """The error of the integers as a file holds them."""
    return loss(dequantize(integers(weight, settings.scheme, ratios)) - weight, gram)
