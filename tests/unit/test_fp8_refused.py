"""What 8-bit products refuse, by name and with what would be right, before anything runs; and the list of formats."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.apply import predict
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.ops.fp8_cast import E4M3, E5M2, brought_back, largest, rows, scale_of, squares, unscaled, whole
from burnish.ops.fp8_linear import Product
from burnish.ops.fp8_product import EMULATED, check_units, of_tokens, way, with_weight
from burnish.plan import make_plan
from burnish.precision_list import lines, precisions
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.recipe_price import precision_of
from fp8_models import make_recipe, make_trainable, trained


def refused(recipe: Recipe) -> str:
    with pytest.raises(UserError) as error:
        predict(recipe, describe(recipe.model, Shapes(rows=2, seq=36)))
    return str(error.value)


def of_sizes(**sizes: int) -> Recipe:
    base = {"vocab": 100, "hidden": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "layers": 2, "head_dim": 16}
    return load("quickstart").model_copy(update={"model": ModelConfig(**base | sizes, max_positions=512)})


@pytest.mark.parametrize(
    ("sizes", "more", "said"),
    [
        ({"hidden": 40, "head_dim": 16}, {}, "attention.q has 40 inputs"),
        ({"ffn": 100}, {}, "mlp.gate has 100 outputs"),
        ({"head_dim": 8, "kv_heads": 1}, {}, "attention.k has 8 outputs"),
        ({"ffn": 112}, {"parallel.tp": 2}, "mlp.gate has 56 outputs on a rank"),
        ({"kv_heads": 1, "head_dim": 24}, {}, "attention.k has 24 outputs"),
    ],
)
def test_sizes_that_units_refuse_are_refused_here_by_name(sizes, more, said):
    recipe = replace(of_sizes(**sizes), {"techniques": {"fp8": {}}} | more)
    message = refused(recipe)
    assert said in message
    assert "multiples of 16" in message
    assert "\n" not in message
    assert ("smaller parallel.tp" in message) == ("parallel.tp" in more)


def test_the_values_named_do_work():
    recipe = replace(of_sizes(ffn=100), {"techniques": {"fp8": {}}})
    assert "use 96 or 112" in refused(recipe)
    for ffn in (96, 112):
        predict(replace(recipe, {"model.ffn": ffn}), describe(of_sizes(ffn=ffn).model, Shapes(rows=2, seq=36)))
    without = {"techniques": {"fp8": {"without": ("gate", "up", "down")}}}
    predict(replace(recipe, without), describe(recipe.model, Shapes(rows=2, seq=36)))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"targets": ("qq",)}, "no matrix 'qq'"),
        ({"without": ("head",)}, "no matrix 'head'"),
        ({"without": ("*",)}, "no matrix is left"),
        ({"scaling": "block", "products": "scaled_mm"}, "takes one scale a tensor"),
        ({"products": "transformer-engine"}, "is not installed"),
    ],
)
def test_settings_that_cannot_be_are_refused(config, said):
    assert said in refused(make_recipe(config))


def test_an_engine_that_is_there_is_not_taken_for_one_in_use(monkeypatch):
    found = ModuleType("transformer_engine")
    found.__spec__ = torch.__spec__
    monkeypatch.setitem(sys.modules, "transformer_engine", found)
    assert "no product here is made with it" in refused(make_recipe({"products": "transformer-engine"}))


@pytest.mark.parametrize("config", [{"scaling": "none"}, {"history": 0}, {"gradients": "e3m4"}, {"tile": 16}])
def test_unknown_settings_are_refused(config):
    with pytest.raises(UserError, match=r"techniques|fp8"):
        make_recipe(config)


def test_a_word_is_the_scaling():
    assert make_recipe("block").techniques["fp8"] == make_recipe({"scaling": "block"}).techniques["fp8"]


# -- the list of formats -----------------------------------------------------------------------------------------------

CASES = [
    ({"compute": "bf16"}, {}),
    ({"compute": "bf16"}, {"fp8": {}}),
    ({"compute": "fp32"}, {"fp8": {"targets": ("attention.*",)}}),
    ({"compute": "bf16"}, {"fp8": {"scaling": "block", "without": ("down", "v")}}),
]
NAMES = {torch.float32: "float32", torch.bfloat16: "bf16"}


def formats(case: int, model: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Of each kind of module the format that is listed, and those that the modules have."""
    precision, techniques = CASES[case]
    recipe = make_recipe(None, model, precision=precision, techniques=techniques)
    made: dict[str, set[str]] = {}
    for name, module in make_trainable(recipe).parts[0].model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is not None:
            cast = isinstance(getattr(module, "product", None), Product)
            stars = ".".join("*" if part.isdigit() else part for part in name.split("."))
            made.setdefault(stars, set()).add("fp8" if cast else NAMES[weight.dtype])
    return {name: form.partition(" ")[0] for name, form in precisions(recipe).items()}, made


@pytest.mark.parametrize(("case", "model"), list(itertools.product(range(len(CASES)), ("llama", "gpt2", "qwen3"))))
def test_the_list_is_what_the_modules_are(case, model):
    listed, made = formats(case, model)
    assert {name: {form} for name, form in listed.items()} == made


def test_experts_stay_high():
    recipe = make_recipe({}, "experts", precision__compute="bf16")
    listed = precisions(recipe)
    assert [name for name, form in listed.items() if form.startswith("fp8")] == [
        f"layers.*.attention.{name}" for name in "qkvo"
    ]
    assert listed["layers.*.mlp.router"] == listed["layers.*.mlp.up"] == "bf16"


def test_plans_print_the_list():
    recipe = replace(load("quickstart"), {"precision": "bf16", "techniques": {"fp8": {"without": ("o",)}}})
    notes = make_plan(recipe).notes
    assert "in bf16: embed, layers.*.attention.o, head" in notes
    assert (
        "in fp8 (E4M3, gradients E5M2, current scaling): layers.*.attention.q, layers.*.attention.k, layers.*.attention.v, "
        "layers.*.mlp.gate, layers.*.mlp.up, layers.*.mlp.down" in notes
    )
    assert not list(lines(load("quickstart")))
    assert precision_of(recipe) == "fp8"
    assert precision_of(make_recipe("block")) == "fp8-block"
    assert precision_of(make_recipe(None)) == "fp32"


def test_plans_list_every_module_once():
    recipe = make_recipe({}, precision__compute="bf16")
    names = [name for line in lines(recipe) for name in line.split(": ")[1].split(", ")]
    model = Decoder(recipe.model)
    stars = {".".join("*" if p.isdigit() else p for p in name.split(".")[:-1]) for name, _ in model.named_parameters()}
    assert sorted(names) == sorted({*stars, "head"})


# -- casts and products ------------------------------------------------------------------------------------------------


def test_values_brought_back_are_torchs_own():
    every = torch.arange(256, dtype=torch.uint8)
    for form in (E4M3, E5M2):
        values = every.view(form)
        wanted = values.float()
        known = ~wanted.isnan()
        assert torch.equal(unscaled(values)[known], wanted[known])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 300),
    st.sampled_from([E4M3, E5M2]),
    st.floats(-30, 30),
    st.integers(0, 2**31),
)
def test_casts_are_within_half_a_last_place(height, width, form, power, seed):
    """Of each element, or of the smallest step where a tensor's, or a block's, largest is far above it."""
    x = torch.randn(height, width, generator=torch.Generator().manual_seed(seed)) * 10**power
    half = 2.0 ** -(4 if form == E4M3 else 3)
    below = torch.finfo(form).smallest_normal * half * 2 / torch.finfo(form).max
    assert brought_back(whole(x, scale_of(largest(x), form), form)).isfinite().all()
    for cast, most in (
        (whole(x, scale_of(largest(x), form), form), largest(x)),
        (rows(x, form), 2 * x.abs().amax(1, keepdim=True)),
        (squares(x, form), 2 * largest(x)),
    ):
        error = (brought_back(cast) - x).abs()
        assert (error <= (x.abs() * half).maximum(most * below) * (1 + 1e-5)).all()


def test_scales_of_odd_magnitudes():
    amax = torch.tensor([0.0, 1e-45, 3.0, 448.0, 3e38, torch.inf, torch.nan])
    scale = scale_of(amax, E4M3)
    assert scale[0] == 1.0
    assert scale[2:5].tolist() == pytest.approx([448 / 3, 1.0, 448 / 3e38])
    assert (1 / scale[1]) * 2.0**126 == 1.0
    assert scale[5:].isnan().all()


@pytest.mark.parametrize("forms", list(itertools.product((E4M3, E5M2), repeat=2)))
def test_the_devices_own_products_give_the_same(forms):
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.randn(shape, generator=draw) for shape in ((21, 64), (48, 64)))
    first, second = (whole(x, scale_of(largest(x), form), form) for x, form in zip((a, b), forms, strict=True))
    found, wanted = (of_tokens(*first, *second, torch.float32, by) for by in ("scaled_mm", EMULATED))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    exact = brought_back(first).double() @ brought_back(second).double().t()
    torch.testing.assert_close(wanted.double(), exact, rtol=1e-5, atol=1e-5)
    assert check_units(torch.device("cpu")) < 1e-5


def test_units_that_answer_wrongly_stop_a_run(monkeypatch):
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **rest: torch.zeros(a.shape[0], b.shape[1]))
    with pytest.raises(RuntimeError, match="8-bit products on cpu are wrong"):
        way("scaled_mm", torch.device("cpu"), blocks=False)
    assert way("auto", torch.device("cpu"), blocks=False) == EMULATED


def test_either_way_trains_alike():
    """Sums differ in their last places, which tips a few roundings over; before the first update nothing else does."""
    found, wanted = (
        [loss for loss, _ in trained(make_recipe({"products": way}), 3, 2)] for way in ("scaled_mm", "auto")
    )
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    assert found == pytest.approx(wanted, rel=2e-4)


def test_blocks_of_a_weight_are_cast_as_blocks():
    """A far outlier costs its own square its small values, and no other."""
    weight = torch.randn(160, 144)
    weight[3, 5] = 1e6
    x = torch.eye(144)
    cast = rows(x, E4M3)
    found = with_weight(*cast, weight, torch.empty(0), torch.float32, EMULATED).t()
    error = ((found - weight).abs() / weight.abs().clamp(min=1e-2)).nan_to_num()
    assert error[128:].max() < 0.1
    assert error[:128, 128:].max() < 0.1
    assert error[:128, :128].max() > 0.9
