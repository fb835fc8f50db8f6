"""The law for pruned models: work, a step, FLOPs, parameters and file bytes are those predicted before anything was cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import settings as runs
from hypothesis import strategies as st
from safetensors import safe_open
from torch.utils.flop_counter import FlopCounterMode

import burnish.measure  # noqa: F401 - counts attention
from burnish import pruned_sizes
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.errors import UserError
from burnish.export.safetensors import save_folder
from burnish.layout import weight_bytes
from burnish.measure import observe
from burnish.mesh import Mesh
from burnish.pruned_sizes import parameters_of, pruned_config, token_flops
from burnish.recipe import Optim
from burnish.techniques import prune
from burnish.tensors import file_shapes
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import plain_trainable
from burnish.work import fold
from pruned_models import NAMES, config_of, random_decoder, samples, settings

SAVED = ("saved", "forward", "", "")
SHAPES = {
    "ragged": Shapes(rows=3, seq=17, micro=2, rest=1),
    "packed": Shapes(rows=2, seq=19, micro=1, pairs=2 * (7 * 7 + 12 * 12), packed=True),
}
names = pytest.mark.parametrize("name", NAMES)


def batches(shapes: Shapes, vocab: int) -> list[Batch]:
    draw = np.random.default_rng(0)
    pieces = (7, 12) if shapes.packed else (shapes.seq,)
    positions = np.concatenate([np.arange(n) for n in pieces])
    made = []
    for rows in (shapes.rows, shapes.rest)[: shapes.micro]:
        ids, labels = draw.integers(0, vocab, (2, rows, shapes.seq))
        made.append(Batch(ids, labels, np.tile(positions, (rows, 1)), (pieces,) * rows if shapes.packed else None))
    return made


def observed_and_predicted(name: str, kind: str) -> tuple[dict, dict]:
    """A step of the smaller model as it was seen, and as it was predicted from the whole one's description."""
    config, shapes = config_of(name), SHAPES[kind]
    model, asked = random_decoder(config), settings(config)
    table = prune.search(asked, model, samples())
    loss = LanguageModelLoss(prune.apply(asked, model, Mesh(), table))
    seen = observe(plain_trainable(loss, build_optimizer(loss, Optim()), 1.0), batches(shapes, config.vocab), 1e-3)
    return dict(seen), dict(fold(prune.predict(asked, describe(config, shapes), Mesh(), table)))


def holds(name: str, kind: str) -> None:
    seen, predicted = observed_and_predicted(name, kind)
    assert seen[SAVED] == pytest.approx(predicted[SAVED], rel=0.02)
    assert seen | {SAVED: 0} == predicted | {SAVED: 0}


@names
@pytest.mark.parametrize("kind", SHAPES)
def test_a_step_of_the_smaller_model_is_as_predicted(name: str, kind: str) -> None:
    holds(name, kind)


@st.composite
def asked(draw: st.DrawFn) -> tuple[ModelConfig, prune.Config]:
    queries, groups, layers = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(1, 6))
    family = draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"]))
    sizes = {"vocab": 97, "hidden": draw(st.sampled_from([24, 40, 96])), "head_dim": 6, "ffn": draw(st.integers(1, 90))}
    sizes |= {"heads": groups * queries, "kv_heads": groups, "layers": layers, "family": family}
    if family in ("qwen2", "qwen3") and draw(st.booleans()):
        sizes |= {"window": 5, "window_from": draw(st.integers(0, layers))}
    if family in ("mixtral", "qwen3_moe"):
        sizes |= {"experts": 3, "topk": 2}
    shares = {name: draw(st.integers(0, 9)) / 10 for name in prune.PARTS}
    if "experts" in sizes:
        shares["channels"] = 0.0
    assume(any(shares.values()))
    more = {"multiple": draw(st.integers(1, 9)), "even_heads": draw(st.booleans())}
    target = draw(st.sampled_from(["", "parameters", "bytes", "flops"]))
    if target:
        more[target] = draw(st.integers(1, 99)) / 100
    return ModelConfig(**sizes), prune.Config(**shares, **more)


@given(asked(), st.sampled_from(list(SHAPES)))
@runs(max_examples=150, deadline=None)
def test_the_description_of_the_smaller_config_is_the_rewritten_one(given_, kind: str) -> None:
    config, settings_ = given_
    plain = describe(config, SHAPES[kind])
    try:
        sizes = prune.decide(settings_, plain)
    except prune.BudgetNotMet:
        assume(False)
    small = pruned_config(config, sizes)
    assert describe(small, SHAPES[kind]) == prune.predict(settings_, plain, Mesh())
    assert parameters_of(describe(small, SHAPES[kind])) == small.parameters
    assert sizes == prune.decide(settings_, describe(config, Shapes(1, 1))), "sizes depend on the batch"
    assert pruned_sizes.sizes_of_config(config) == pruned_sizes.sizes_of(plain)
    if settings_.target:
        asked_, whole = getattr(settings_, settings_.target), prune.cost(settings_, plain)
        assert prune.cost(settings_, pruned_sizes.pruned_work(plain, sizes)) <= asked_ * whole


@names
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_the_files_are_known_before_the_search(name: str, dtype: str, tmp_path) -> None:
    config = config_of(name)
    wanted = settings(config)
    small = pruned_config(config, prune.decide(wanted, describe(config, Shapes(1, 1))))
    predicted = weight_bytes(small, dtype, False, 40_000)
    model = prune.apply(wanted, random_decoder(config), Mesh())
    save_folder(model, model.shape, tmp_path / "m", dtype=dtype, shard_bytes=40_000)
    files = list((tmp_path / "m").glob("*.safetensors"))
    assert sum(file.stat().st_size for file in files) == predicted < weight_bytes(config, dtype, False, 40_000)
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            found |= {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
    assert found == file_shapes(small)


@names
def test_flops_of_a_token_are_those_counted(name: str) -> None:
    config = config_of(name)
    model = prune.apply(settings(config), random_decoder(config), Mesh())
    small = model.shape
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(model(torch.tensor([[3]])))
    own = 4 * small.layers * small.heads * small.head_dim
    assert counter.get_total_flops() - own == token_flops(describe(small, Shapes(rows=3, seq=7)))


@pytest.mark.parametrize("target", ["parameters", "bytes", "flops"])
@pytest.mark.parametrize("share", [0.9, 0.6, 0.45])
def test_a_target_is_met_by_the_largest_model(target: str, share: float) -> None:
    """One step back on the way there would not meet it."""
    config, shapes = config_of("llama 2"), Shapes(1, 1)
    wanted = prune.Config(channels=0.5, groups=0.5, layers=0.2, multiple=4, **{target: share})
    work = describe(config, shapes)
    limit = share * prune.cost(wanted, work)
    way = list(pruned_sizes.along(pruned_sizes.sizes_of(work), wanted.shares, wanted.rounding))
    costs = [prune.cost(wanted, pruned_sizes.pruned_work(work, sizes)) for sizes in way]
    assert costs == sorted(costs, reverse=True)
    at = way.index(prune.decide(wanted, work))
    assert costs[at] <= limit < costs[at - 1]


def test_a_count_is_a_target_too() -> None:
    config = config_of("llama 2")
    model = random_decoder(config)
    small = prune.apply(prune.Config(parameters=60_000, importance="norm", multiple=1), model, Mesh())
    assert 59_000 < sum(p.numel() for p in small.parameters()) <= 60_000
    asked_ = prune.Config(bytes="0.2 MiB", importance="norm", multiple=1)
    small = prune.apply(asked_, model, Mesh())
    assert 0.97 * 0.2 * 2**20 < 4 * sum(p.numel() for p in small.parameters()) <= 0.2 * 2**20
    half = asked_.model_copy(update={"file_dtype": "bfloat16", "bytes": 0.1 * 2**20})
    assert prune.apply(half, model, Mesh()).shape == small.shape


def test_untouched_weights_are_predicted_too() -> None:
    """A table of other settings is refused by predict as by apply."""
    config = config_of("llama 2")
    model, one = random_decoder(config), settings(config)
    table = prune.search(one, model, None)
    with pytest.raises(UserError, match="made with channels"):
        prune.predict(one.model_copy(update={"channels": 0.5}), describe(config, Shapes(1, 1)), Mesh(), table)


@pytest.mark.sabotage
@pytest.mark.parametrize(("table", "op"), [("GROUPS", "o"), ("GROUPS", "rotary"), ("CHANNELS", "down")])
def test_an_operation_left_as_it_was_is_noticed(table: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> bool:
        config, wanted = config_of("llama 2"), settings(config_of("llama 2"))
        plain = describe(config, SHAPES["ragged"])
        return describe(pruned_config(config, prune.decide(wanted, plain)), SHAPES["ragged"]) != prune.predict(
            wanted, plain, Mesh()
        )

    assert not breaks()
    monkeypatch.setattr(pruned_sizes, table, {k: v for k, v in getattr(pruned_sizes, table).items() if k != op})
    assert breaks()


@pytest.mark.sabotage
def test_a_group_counted_without_its_query_heads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    holds("llama 3", "ragged")
    monkeypatch.setattr(
        pruned_sizes, "GROUPS", {k: v for k, v in pruned_sizes.GROUPS.items() if k not in ("q", "attention", "o")}
    )
    with pytest.raises(AssertionError):
        holds("llama 3", "ragged")
