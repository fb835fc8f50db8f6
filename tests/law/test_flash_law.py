"""The law for attention's kernels: alone, and with every technique they may be combined with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline_ranks
import ranks
import tensor_ranks
from burnish.describe import Shapes, describe
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.recipe import Recipe
from burnish.techniques import attention
from burnish.work import fold

sys.path.insert(0, str(Path(__file__).parent))
from test_family_law import SAVED, make_recipe
from test_training_law import SETTINGS, compare, make_batches

KERNELS = ("sdpa", "tiled", "plain")
PIECES = (9, 20, 12)
kernels = pytest.mark.parametrize("kernel", KERNELS)


def with_kernel(family: str, kernel: str, settings: dict | None = None, **more: dict) -> Recipe:
    config = {"kernel": kernel, "block_q": 16, "block_k": 8}
    return make_recipe(family, (settings or {}) | {"techniques": {"attention": config} | more})


def check(recipe: Recipe, packed: bool = False, micro: int = 2) -> None:
    vocab = recipe.model.vocab
    if packed:
        shapes = Shapes(rows=2, seq=41, micro=1, pairs=2 * sum(n * n for n in PIECES), packed=True)
        compare(recipe, shapes, make_batches(1, 2, 41, vocab, PIECES))
    else:
        compare(recipe, Shapes(rows=3, seq=37, micro=micro), make_batches(micro, 3, 37, vocab))


@pytest.mark.parametrize("kernel", KERNELS[1:])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "qwen3 moe"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_predicted_equals_observed(family: str, settings: str, kernel: str) -> None:
    check(with_kernel(family, kernel, SETTINGS[settings]))


@kernels
@pytest.mark.parametrize("settings", ["plain", "selective"])
def test_predicted_equals_observed_for_packed_rows_in_16_bits(settings: str, kernel: str) -> None:
    check(with_kernel("mistral", kernel, SETTINGS[settings] | {"precision": "bf16"}), packed=True)


@kernels
@pytest.mark.parametrize("targets", [(), ("mlp.*",), ("q",)])
@pytest.mark.parametrize("settings", ["plain", "selective"])
def test_predicted_equals_observed_with_adapters(settings: str, targets: tuple[str, ...], kernel: str) -> None:
    recipe = with_kernel("llama", kernel, SETTINGS[settings], lora={"rank": 3, "targets": targets})
    if (kernel, targets) == ("plain", ("q",)):
        with pytest.raises(UserError, match="adapters on q of q, k and v do not go with plain attention"):
            check(recipe)
    else:
        check(recipe, micro=1)


@pytest.mark.parametrize("kernel", ["tiled", "plain"])
@pytest.mark.parametrize(("model", "sequence"), [("llama", True), ("mistral", False)])
def test_predicted_equals_observed_on_ranks(model: str, sequence: bool, kernel: str) -> None:
    """Tensor parallelism beside ZeRO, the heads divided."""
    settings = {"parallel__zero": 2, "techniques": {"attention": {"kernel": kernel}}}
    recipe = tensor_ranks.make_recipe(model, 2, dp=2, sequence=sequence, **settings)
    for rank, steps in enumerate(ranks.run(recipe.parallel.world, tensor_ranks.observed, recipe, 2)):
        expected = tensor_ranks.predicted(recipe, 2, rank)
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@pytest.mark.parametrize("kernel", ["tiled", "plain"])
def test_predicted_equals_observed_on_stages(kernel: str) -> None:
    """A pipeline of two stages, with windows in some layers, that keeps only what the kernel gives."""
    window = {"family": "qwen2", "window": 5, "window_from": 3}
    settings = {"memory__checkpointing": "selective", "techniques": {"attention": {"kernel": kernel}}}
    recipe = pipeline_ranks.make_recipe(3, 2, 5, window, **settings)
    found = ranks.run(recipe.parallel.world, pipeline_ranks.observed, recipe, pipeline_ranks.make_batches(recipe))
    for rank, steps in enumerate(found):
        expected = pipeline_ranks.predicted(recipe, rank)
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@pytest.mark.parametrize("kernel", ["tiled", "plain"])
def test_losses_on_ranks_equal_those_of_one_process_and_another_kernel(kernel: str) -> None:
    """Packed rows under a window, heads divided; the one process has torch's own kernel."""
    pieces = (9, 20, 7)
    batches = [tensor_ranks.make_batches(2, 331, seed, pieces) for seed in range(3)]
    alone = tensor_ranks.make_trainable(tensor_ranks.make_recipe("mistral", 1))
    expected = [alone.step(step, tensor_ranks.LR) for step in batches]
    divided = tensor_ranks.make_recipe("mistral", 2, techniques={"attention": {"kernel": kernel}})
    for results in ranks.run(2, tensor_ranks.trained, divided, batches):
        for mine, theirs in zip(results, expected, strict=True):
            assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
            assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-5)


def saved_of(kernel: str, seq: int) -> int:
    recipe = with_kernel("llama", kernel)
    config = recipe.techniques["attention"]
    work = describe(recipe.model, Shapes(rows=1, seq=seq))
    return fold(attention.predict(attention.settle(config, work, Mesh()), work, Mesh()))[SAVED]


def test_what_is_kept_grows_with_the_length_or_with_its_square() -> None:
    """7 heads, 3 layers, float32: of a row of n tokens plain attention keeps 84 n^2 bytes more, and no log-sum-exp."""
    for n in (64, 1024):
        assert saved_of("plain", n) - saved_of("tiled", n) == 3 * 7 * 4 * (n * n - n)
        assert saved_of("tiled", n) == saved_of("sdpa", n)


def test_auto_takes_tiles_where_a_window_would_need_a_mask() -> None:
    work = {name: describe(with_kernel(name, "auto").model, Shapes(rows=3, seq=37)) for name in ("llama", "mistral")}
    chosen = {name: attention.settle(attention.Config(), w, Mesh()).kernel for name, w in work.items()}
    assert chosen == {"llama": "sdpa", "mistral": "tiled"}
    check(with_kernel("mistral", "auto"))


def test_triton_where_it_does_not_run_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"runs on CUDA .* use tiled or sdpa"):
        check(with_kernel("llama", "triton"))
    wide = describe(with_kernel("llama", "triton").model.model_copy(update={"head_dim": 257}), Shapes(1, 8))
    with pytest.raises(UserError, match="heads of 257 elements"):
        attention.check(attention.Config(kernel="triton"), wide, Mesh())
    none = replace(wide, blocks=wide.blocks[:1])
    with pytest.raises(UserError, match="no attention"):
        attention.check(attention.Config(), none, Mesh())


def breaks(kernel: str, family: str = "mistral") -> bool:
    try:
        check(with_kernel(family, kernel), packed=True)
    except AssertionError:
        return True
    return False


@pytest.mark.sabotage
@pytest.mark.parametrize("kernel", ["tiled", "plain"])
def test_a_backward_counted_as_the_other_kernels_is_noticed(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks(kernel)
    monkeypatch.setattr(attention, "PRODUCTS", {"tiled": 4, "plain": 5})
    assert breaks(kernel)


@pytest.mark.sabotage
def test_outputs_joined_for_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "JOINED", "none of this name")
    assert breaks("tiled")
