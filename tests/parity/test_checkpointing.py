"""Checkpointing changes what is kept, never what is computed: losses, gradients and updates agree bit for bit."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from burnish.apply import apply
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops.recompute import recomputed
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.serve.generate import generate
from burnish.serve.sampling import Sampling
from burnish.techniques import checkpointing
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import Trainable, plain_trainable

MODEL = ModelConfig(
    vocab=131, hidden=40, ffn=72, heads=5, kv_heads=1, layers=3, head_dim=8, tied=False, max_positions=64
)
MODES = {"full": "full", "every": {"mode": "every", "every": 2}, "selective": "selective"}


def make_recipe(mode: object, compute: str = "fp32") -> Recipe:
    base = load("quickstart").model_copy(update={"model": MODEL})
    return replace(base, {"memory.checkpointing": mode, "precision": compute, "data.seq": 64})


def make_trainable(recipe: Recipe, freeze: bool = False) -> Trainable:
    loss = LanguageModelLoss(Decoder(recipe.model, torch.Generator().manual_seed(1)))
    loss.model.embed.weight.requires_grad_(not freeze)
    return apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip))


def make_batches(packed: bool = False) -> list[Batch]:
    """Two micro batches of unequal label counts."""
    draw = np.random.default_rng(0)
    pieces = ((5, 12, 6), (20, 3)) if packed else None
    positions = np.stack([np.concatenate([np.arange(n) for n in row]) for row in pieces or ((23,), (23,))])
    batches = []
    for ignored in (3, 11):
        ids, labels = draw.integers(0, MODEL.vocab, (2, 2, 23))
        labels[:, :ignored] = -100
        batches.append(Batch(ids, labels, positions, pieces))
    return batches


def curve(trainable: Trainable, batches: list[Batch], steps: int = 5) -> list[tuple[float, float]]:
    results = [trainable.step(batches, 1e-2) for _ in range(steps)]
    return [(result.loss, result.grad_norm) for result in results]


def weights(trainable: Trainable) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainable.parts[0].named_parameters()}


@pytest.mark.parametrize("compute", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_flt_041_loss_curves_with_and_without_recompute_agree(mode: str, packed: bool, compute: str) -> None:
    plain, again = make_trainable(make_recipe("none", compute)), make_trainable(make_recipe(MODES[mode], compute))
    batches = make_batches(packed)
    losses = curve(again, batches)
    assert losses == curve(plain, batches)
    assert losses[-1][0] < losses[0][0] - 0.3
    assert all(torch.equal(w, weights(plain)[name]) for name, w in weights(again).items())


@pytest.mark.parametrize("mode", MODES)
def test_flt_040_a_frozen_embedding_still_trains_the_rest(mode: str) -> None:
    trainable, plain = make_trainable(make_recipe(MODES[mode]), freeze=True), make_trainable(make_recipe("none"), True)
    before = weights(trainable)
    losses = curve(trainable, make_batches())
    assert losses == curve(plain, make_batches())
    assert losses[-1][0] < losses[0][0] - 0.3
    still = [name for name, w in weights(trainable).items() if torch.equal(w, before[name])]
    assert still == ["model.embed.weight"]


def test_flt_040_a_parameter_that_gets_no_gradient_is_refused() -> None:
    trainable = make_trainable(make_recipe("full"))
    layer = trainable.parts[0].model.layers[1]
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: forward(*args, **kwargs).detach()
    with pytest.raises(UserError, match="no gradient reaches"):
        trainable.step(make_batches(), 1e-2)


@pytest.mark.parametrize("mode", MODES)
def test_writing_text_is_the_same(mode: str) -> None:
    """The cache of keys and values is an argument too, and there is no backward to keep anything for."""
    texts = [
        generate(make_trainable(make_recipe(m)).parts[0].model, [[1, 2, 3], [4]], Sampling(max_new_tokens=8))
        for m in ("none", MODES[mode])
    ]
    assert texts[0] == texts[1]
    assert len(texts[0][1]) == 8


class Wave(nn.Module):
    """A layer of another kind: dropout, a keyword, two results, and a product that its own end needs again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(6, 9), nn.Linear(9, 6), nn.Dropout(0.4)

    def forward(self, x: Tensor, count: Tensor, *, shift: float = 0.0) -> tuple[Tensor, Tensor]:
        return x + self.outer(self.drop(torch.sin(self.inner(x) + shift))).sigmoid(), count + 1


class Stack(nn.Module):
    """Modules in a list of the user's own naming."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = nn.ModuleList(Wave() for _ in range(3))
        self.read = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        count = torch.zeros(())
        for wave in self.waves:
            x, count = wave(x, count, shift=0.5)
        return self.read(x).sum() + count


@pytest.mark.parametrize("mode", ["full", "selective", {"mode": "every", "every": 2}])
def test_any_modules_named_by_a_pattern(mode: object) -> None:
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(4, 6)
    optimizer = torch.optim.AdamW(model.parameters())
    gradients = []
    for settings in (None, mode):
        if settings is not None:
            fields = settings if isinstance(settings, dict) else {"mode": settings}
            config = checkpointing.Config.model_validate({**fields, "blocks": "waves.*"})
            checkpointing.apply(config, Trainable([model], optimizer, partial(print)), Mesh())
        torch.manual_seed(5)
        model(x).backward()
        gradients.append([p.grad for p in model.parameters()])
        model.zero_grad(set_to_none=True)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_pattern_that_names_nothing_is_refused() -> None:
    model = Stack()
    config = checkpointing.Config(mode="full", blocks="layers.*")
    with pytest.raises(UserError, match=r"layers\.\*"):
        checkpointing.apply(config, Trainable([model], torch.optim.AdamW(model.parameters()), partial(print)), Mesh())


def test_kept_products_go_when_backward_has_used_them() -> None:
    layer = Wave()
    recomputed(layer, keep_products=True)
    made: list[torch.UntypedStorage] = []

    def note(tensor: Tensor) -> Tensor:
        made.append(tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out, _ = layer(torch.randn(4, 6, requires_grad=True), torch.zeros(()))
    assert 4 * 4 * 9 in [storage.nbytes() for storage in made]  # the first product, 9 wide; the last is made again
    assert out.grad_fn is not None
    kept = out.grad_fn.saved_tensors
    assert [tuple(tensor.shape) for tensor in kept] == [(4, 9)]
    out.sum().backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = out.grad_fn.saved_tensors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "budget"}, "go together"),
        ({"mode": "full", "budget": "1 GiB"}, "go together"),
        ({"mode": "budget", "budget": "1 GB"}, "KiB, MiB or GiB"),
        ({"mode": "every", "every": 9}, r"use 1\.\.3"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_trainable(make_recipe(settings))


def test_sizes_are_read_as_bytes() -> None:
    sizes = [checkpointing.Config(mode="budget", budget=text).budget for text in ("1.5 GiB", "300MiB", "77", 77)]
    assert sizes == [3 * 2**29, 300 * 2**20, 77, 77]
