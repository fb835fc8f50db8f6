"""Claim: FP8 casts the products of linear layers only, each tensor with a scale of its own; everything else stays high."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from burnish import apply, ranks
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observed_step
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.models.layers import LayerNorm, Linear, RMSNorm
from burnish.ops.fp8_linear import Product
from burnish.precision_list import precisions
from burnish.prove.checkpointing import random_batch
from burnish.prove.claim import Verdict
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.train.loss import LanguageModelLoss, batch_tensors
from burnish.train.optim import build_optimizer
from burnish.train.step import Trainable, plain_trainable
from burnish.units import show
from burnish.work import Observation, fold

ROWS, SEQ, MICRO, STEPS, LR = 2, 61, 2, 4, 1e-3  # tokens that are no multiple of 16
# Least ratio of a product's signal to its noise, in decibels. An error spread evenly within half a last place is 31.6 dB for
# 3 bits of fraction and 25.6 for 2, of operands at all places within a power of two; two operands have their sum. Gradients
# of weights rest on few tokens that outweigh the others, which average less out.
FLOORS = {"forward": 27.5, "input gradient": 23.5, "weight gradient": 22.0, "norm": 40.0}
BLOCK_FLOORS = FLOORS | {"input gradient": 27.0, "weight gradient": 26.5}  # E4M3 throughout
APART = 2e-4  # two ranks sum in another order, which tips a few roundings over; less than what 8 bits change themselves
SMALL = 1e-6  # gradients of a mean over many tokens: below what an 8-bit float holds unscaled


def recipe(scaling: str | None, compute: str = "bf16", tp: int = 1) -> Recipe:
    """About 0.4 million parameters, cast with `scaling` or not at all."""
    model = ModelConfig(vocab=509, hidden=96, ffn=256, heads=6, kv_heads=2, layers=2, tied=True, max_positions=64)
    cast = {} if scaling is None else {"fp8": {"scaling": scaling}}
    settings = {"precision": compute, "techniques": cast, "parallel.tp": tp, "parallel.sequence": False}
    rows = {"data.seq": SEQ, "train.micro_batch": ROWS, "train.global_batch": MICRO * ROWS}
    return replace(load("quickstart").model_copy(update={"model": model}), settings | rows)


def trainable_of(wanted: Recipe, seed: int = 0) -> Trainable:
    """The same weights for every recipe and on every rank."""
    loss = LanguageModelLoss(Decoder(wanted.model, torch.Generator().manual_seed(seed)))
    plain = plain_trainable(loss, build_optimizer(loss, wanted.optim), wanted.optim.clip)
    return apply.apply(wanted, plain, describe(wanted.model, shapes()))


def shapes() -> Shapes:
    """Sizes of a step."""
    return Shapes(rows=ROWS, seq=SEQ, micro=MICRO)


def batches(wanted: Recipe) -> list[Batch]:
    """The micro batches of a step."""
    whole = random_batch(wanted.model, MICRO * ROWS, SEQ)
    cuts = [slice(start, start + ROWS) for start in range(0, MICRO * ROWS, ROWS)]
    return [Batch(whole.ids[cut], whole.labels[cut], whole.positions[cut], None) for cut in cuts]


def decibels(found: Tensor, exact: Tensor) -> float:
    """Ten times the decimal log of the squares of `exact` over those of what `found` is off by."""
    noise = (found.double() - exact).square().sum().item()
    return 10 * math.log10(exact.square().sum().item() / noise) if noise else math.inf


def quality(trainable: Trainable, batch: Batch) -> dict[str, float]:
    """The least decibels of each kind of product, and of a norm, over the modules of a decoder, on what they meet in a
    micro batch, beside float64. Gradients are `SMALL`, as a mean over many tokens makes them."""
    met: list[tuple[nn.Module, Tensor, Tensor]] = []
    model: nn.Module = trainable.parts[0].model  # type: ignore[assignment]

    def note(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        made.register_hook(lambda gradient: met.append((module, given[0].detach(), gradient.detach())))

    kinds = (Linear, RMSNorm, LayerNorm)
    handles = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, kinds)]
    trainable.parts[0](*batch_tensors(batch, torch.device("cpu"))).backward()
    for handle in handles:
        handle.remove()
    trainable.optimizer.zero_grad(set_to_none=True)
    least = dict.fromkeys(FLOORS, math.inf)
    for module, x, gradient in met:
        for kind, ratio in _of_module(module, x, gradient * SMALL):
            least[kind] = min(least[kind], ratio)
    trainable.optimizer.zero_grad(set_to_none=True)
    return least


def _of_module(module: nn.Module, x: Tensor, gradient: Tensor) -> Iterator[tuple[str, float]]:
    weight = module.weight
    assert isinstance(weight, Tensor)
    if not isinstance(module, Linear):
        exact = nn.functional.rms_norm(x.double(), x.shape[-1:], weight.double(), module.eps)  # type: ignore[arg-type]
        yield "norm", decibels(module(x).detach(), exact)
        return
    x.requires_grad_()
    made = module.product(x, weight, None)
    made.backward(gradient)
    assert x.grad is not None
    assert weight.grad is not None
    wide, rows = weight.detach().double(), gradient.double().flatten(0, -2)
    yield "forward", decibels(made.detach(), x.detach().double() @ wide.t())
    yield "input gradient", decibels(x.grad, gradient.double() @ wide)
    yield "weight gradient", decibels(weight.grad, rows.t() @ x.detach().double().flatten(0, -2))
    weight.grad = None


def as_listed(trainable: Trainable, wanted: Recipe) -> bool:
    """Whether the modules whose products are cast are those that the plan lists."""
    listed = {name for name, form in precisions(wanted).items() if form.startswith("fp8")}
    model: nn.Module = trainable.parts[0].model  # type: ignore[assignment]
    cast = [name for name, m in model.named_modules() if isinstance(getattr(m, "product", None), Product)]
    stars = {".".join("*" if part.isdigit() else part for part in name.split(".")) for name in cast}
    return stars == listed and len(cast) == len(listed) * wanted.model.layers


def on_ranks() -> tuple[bool, int, list[float]]:
    """On this rank of two that divide layers: whether a step did as predicted, its small all-reduces, and all losses."""
    wanted = recipe("current", "fp32", dist.get_world_size())
    trainable = trainable_of(wanted)
    work, _ = apply.predict(wanted, describe(wanted.model, shapes()), dist.get_rank())
    first, seen = observed_step(trainable, batches(wanted), LR)
    losses = [first.loss, *(trainable.step(batches(wanted), LR).loss for _ in range(STEPS - 1))]
    exact = {key: n for key, n in seen.items() if key[0] != "saved"} == {
        key: n for key, n in fold(work).items() if key[0] != "saved"
    }
    return exact, _reductions(seen) - _reductions(_without()), losses


def _without() -> Observation:
    """What the same step on these ranks is predicted to do without casts."""
    wanted = recipe(None, "fp32", dist.get_world_size())
    return fold(apply.predict(wanted, describe(wanted.model, shapes()), dist.get_rank())[0])


def _reductions(seen: Observation) -> int:
    return sum(count for key, count in seen.items() if key[0] == "comm_count" and key[3] == "all_reduce")


def measure() -> Verdict:
    """Train alike in bf16 with and without 8-bit products, then with them on one process and on two ranks."""
    high, cast = recipe(None), recipe("current")
    plain, trainable = trainable_of(high), trainable_of(cast)
    pairs = [(plain.step(batches(high), LR).loss, trainable.step(batches(cast), LR).loss) for _ in range(STEPS)]
    gap = max(abs(a / b - 1) for a, b in pairs)
    seen, bytes_high = observed_step(trainable, batches(cast), LR)[1], observed_step(plain, batches(high), LR)[1]
    saved = ("saved", "forward", "", "")
    predicted = fold(apply.predict(cast, describe(cast.model, shapes()))[0])
    exact = {**seen, saved: 0} == {**predicted, saved: 0} and abs(seen[saved] / predicted[saved] - 1) < 0.02
    least = quality(trainable, batches(cast)[0])
    alone = trainable_of(recipe("current", "fp32"))
    expected = [alone.step(batches(cast), LR).loss for _ in range(STEPS)]
    found = ranks.run(Mesh(tp=2).world, on_ranks)  # type: ignore[arg-type]
    apart = max(abs(a / b - 1) for _, _, losses in found for a, b in zip(losses, expected, strict=True))
    agreed = all(rank[0] for rank in found)
    listed = as_listed(trainable, cast)
    good = all(least[kind] >= floor for kind, floor in FLOORS.items())
    floors, figures = (", ".join(f"{k} {v:.1f}" for k, v in values.items()) for values in (FLOORS, least))
    same = "parameters, optimizer and FLOPs as in bf16"
    return Verdict(
        claim="fp8",
        statement="FP8 casts the products of linear layers only, in both directions, each tensor with a scale of its own. "
        "Norms, softmax, loss, embedding, head and master weights stay high. It is no 8-bit model.",
        varied="techniques.fp8: none, current; parallel.tp: 1, 2",
        held=f"{cast.model.parameters:,} parameters, {MICRO} x {ROWS} x {SEQ} tokens a step, weights, batch; bf16",
        expected=f"saved {show(predicted[saved], 'bytes')} for {show(bytes_high[saved], 'bytes')}, {same}; least decibels: "
        f"{floors}; losses within 0.5 % of bf16; two ranks: {found[0][1]} more all-reduces a step, losses within {APART:g}",
        measured=f"saved {show(seen[saved], 'bytes')}, {'all else as' if exact else 'not as'} predicted; {figures}; losses "
        f"within {gap:.1g}; modules {'as' if listed else 'not as'} listed; two ranks "
        f"{'as' if agreed else 'not as'} predicted, within {apart:.1g}",
        holds=exact and good and listed and agreed and gap <= 5e-3 and apart <= APART,
        why="A product sums many terms, so that rounding errors of its operands average out; a norm, a softmax or an update "
        "passes on each single error. Gradients span more powers of two than 8 bits hold: the scale moves them in.",
        source="Micikevicius et al. 2022, arXiv 2209.05433",
        code="src/burnish/techniques/fp8.py, src/burnish/ops/fp8_linear.py",
    )
