"""The law for 16-bit training, alone and with checkpointing, and what autograd really keeps in float32."""

import pytest
import torch
from test_training_law import SETTINGS, SIZES, compare, make_batches, make_recipe, make_trainable

from burnish.apply import predict
from burnish.describe import Shapes, describe
from burnish.techniques.precision import kept_high, masters_as_parameters
from burnish.train.loss import batch_tensors
from burnish.work import Bytes, state_bytes


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("compute", "tied", "micro"), [("bf16", True, 3), ("bf16", False, 1), ("fp16", True, 2)])
def test_predicted_equals_observed(size: str, settings: str, compute: str, tied: bool, micro: int) -> None:
    recipe = make_recipe(size, tied, {**SETTINGS[settings], "precision": compute})
    compare(recipe, Shapes(rows=3, seq=37, micro=micro), make_batches(micro, 3, 37, recipe.model.vocab))


@pytest.mark.parametrize("settings", SETTINGS)
def test_predicted_equals_observed_for_packed_rows(settings: str) -> None:
    recipe, pieces = make_recipe("odd", True, {**SETTINGS[settings], "precision": "bf16"}), (9, 20, 12)
    shapes = Shapes(rows=2, seq=41, micro=2, pairs=2 * sum(n * n for n in pieces), packed=True)
    compare(recipe, shapes, make_batches(2, 2, 41, recipe.model.vocab, pieces))


def test_bytes_a_parameter() -> None:
    """2 + 4 + 12 for a matrix, and 4 + 4 + 12 for a vector, which stays in float32."""
    recipe = make_recipe("even", False, {"precision": "bf16"})
    plain = describe(recipe.model, Shapes(rows=3, seq=37))
    vectors = sum(n * shape[0] for n, shape in plain.shapes() if len(shape) == 1)
    held = state_bytes(predict(recipe, plain)[0])
    everything = recipe.model.parameters
    tensors = sum(n for n, _ in plain.shapes())
    assert held == {
        "parameter": 2 * everything + 2 * vectors,
        "gradient": 4 * everything,
        "optimizer": 12 * everything + 4 * tensors,
    }
    assert masters_as_parameters(predict(recipe, plain)[0].bytes) == Bytes(
        compute=2, activation=2, rounded=2, widened=4
    )
    assert masters_as_parameters(plain.bytes) == plain.bytes


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_only_statistics_are_saved_in_float32(compute: str) -> None:
    recipe = make_recipe("even", True, {"precision": compute})
    trainable = make_trainable(recipe)
    (batch,) = make_batches(1, 3, 37, recipe.model.vocab)
    owned = {p.data_ptr() for p in trainable.parts[0].parameters()}
    wide: list[tuple[int, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.float32 and tensor.data_ptr() not in owned:
            wide.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = trainable.parts[0](*batch_tensors(batch, torch.device("cpu")))
    assert loss.dtype == torch.float32
    roots, sums = (3, 37, 1), (3, recipe.model.heads, 37)
    layers = recipe.model.layers
    assert sorted(wide) == sorted([roots] * (2 * layers + 1) + [sums] * layers)


def test_kept_high_names_what_stays() -> None:
    trainable = make_trainable(make_recipe("even", True, {"precision": "bf16"}))
    lines = kept_high(trainable.parts[0])
    assert "model.layers.*.attention_norm: mean square and its root" in lines
    assert "model.layers.*.attention: softmax and its sums" in lines
    assert "model.layers.*.mlp_norm.weight: as it is" in lines
    assert not any("embed" in line or ".q" in line for line in lines)
    wide = {name for name, p in trainable.parts[0].named_parameters() if p.dtype == torch.float32}
    assert wide == {name for name, p in trainable.parts[0].named_parameters() if p.dim() == 1}
