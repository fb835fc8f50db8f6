"""What users of other compression tools met: idle experts, padding, dead channels, searches larger than memory."""

from __future__ import annotations

import copy
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from awq_models import FAMILIES, config_of, decoder, divergence, logits, samples
from burnish.compress import coverage, rtn
from burnish.compress.awq_layer import gather
from burnish.compress.awq_stream import enter
from burnish.compress.samples import Samples
from burnish.compress.search_bytes import search_bytes
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.errors import UserError
from burnish.export.compressed_tensors import save_compressed
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import Int4Linear
from burnish.techniques import awq, int8
from burnish.weight_format import IntWeights

SMALL = awq.Config(group=32, ratios=4)
ROUTED = "qwen3 moe"


def compressed(model: Decoder, own: Samples, config: awq.Config = SMALL) -> tuple[Decoder, Any]:
    table = awq.search(config, model, own)
    return awq.apply(config, copy.deepcopy(model), Mesh(), table), table


def integers(module: nn.Module, expert: int, experts: int) -> Tensor:
    return module.integers.values.chunk(experts)[expert]  # type: ignore[union-attr, operator, no-any-return]


def idle_experts() -> tuple[Decoder, Decoder, Any]:
    """A model calibrated on one token, which reaches two of five experts in each layer."""
    model = decoder(ROUTED)
    return model, *compressed(model, samples(ROUTED, (1,)))


def test_060_experts_that_no_token_reached_are_rounded_to_nearest_and_told() -> None:
    model, made, table = idle_experts()
    (note,) = coverage.told(table)
    assert note.startswith("no calibration token reached 6 experts, which are rounded to nearest: layers.0 expert ")
    assert coverage.told(awq.search(SMALL, model, samples(ROUTED))) == ()
    for number, layer in enumerate(table.layers):
        unseen = next(row.unseen for row in layer.matrices if row.name.endswith("mlp.down"))
        assert len(unseen) == 3
        plain = rtn.integers(model.layers[number].mlp.down.weight, SMALL.scheme).values.chunk(5)
        for expert in range(5):
            same = torch.equal(integers(made.layers[number].mlp.down, expert, 5), plain[expert])
            assert same or expert not in unseen, "nothing is known of what it reads"
        scaled = {row.expert for row in layer.folds if row.source == "mlp.up" and row.scale}
        assert not scaled & set(unseen)


def test_061_the_shape_of_a_scale_follows_the_group_on_both_sides(tmp_path: Path) -> None:
    for group, wanted in ((32, 3), (-1, 1)):
        made = awq.apply(awq.Config(method="rtn", group=group), decoder("llama"), Mesh())
        save_compressed(made, config_of("llama"), tmp_path / f"g{group}")
        with safe_open(tmp_path / f"g{group}" / "model.safetensors", "pt") as file:
            there = file.get_slice("model.layers.0.mlp.down_proj.weight_scale").get_shape()
        read, _ = load_model(open_folder(tmp_path / f"g{group}"))
        assert list(there) == list(read.layers[0].mlp.down.weight_scale.shape) == [64, wanted]
    config = tmp_path / "g32" / "config.json"
    told = json.loads(config.read_text())
    told["quantization_config"]["config_groups"]["group_0"]["weights"] |= {"group_size": 96}
    config.write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"weight_\w+ .*quantization_config says"):
        load_model(open_folder(tmp_path / "g32"))


def test_061_integers_of_8_bits_in_groups_are_refused_by_name(tmp_path: Path) -> None:
    """Rows have one scale here; a folder of another tool's with more is not read as if it had one."""
    config = int8.Config(activations="dynamic", smooth="off")
    sizes = config_of("llama")
    save_compressed(int8.apply(config, decoder("llama"), Mesh()), sizes, tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    told = json.loads(file.read_text())
    told["quantization_config"]["config_groups"]["group_0"]["weights"] |= {"strategy": "group", "group_size": 8}
    file.write_text(json.dumps(told))
    with pytest.raises(UserError, match="4 bits in groups and 8 bits a row work"):
        load_model(open_folder(tmp_path / "m"))


def test_063_padded_rows_calibrate_as_rows_alone_do() -> None:
    """Prompts of unequal length, padded with one token or another, on either side: the same scales."""
    model, own = decoder("llama"), samples("llama", (9, 3, 14))
    right = Samples(torch.where(own.mask, own.ids, 7), own.mask)
    left = Samples(torch.full_like(own.ids, 11), own.mask.flip(1))
    left.ids[left.mask] = own.ids[own.mask]
    tables = [awq.search(SMALL, model, rows) for rows in (own, right, left)]
    assert tables[0] == tables[1]
    assert tables[0] is not None
    assert tables[2] is not None
    assert tables[2].key == tables[0].key
    for one, other in zip(tables[0].layers, tables[2].layers, strict=True):
        for a, b in zip(one.matrices, other.matrices, strict=True):
            assert a.energy == pytest.approx(b.energy, rel=1e-4)


def test_073_a_model_with_idle_experts_is_written_and_reads_back(tmp_path: Path) -> None:
    """Experts of one matrix share one format, whether tokens reached them or not."""
    _, made, _ = idle_experts()
    save_compressed(made, config_of(ROUTED), tmp_path / "m")
    read, _ = load_model(open_folder(tmp_path / "m"))
    own = samples(ROUTED)
    assert torch.isfinite(logits(made, own)).all()
    wanted = made.state_dict()
    for name, tensor in read.state_dict().items():
        own_tensor = wanted[name].half().float() if tensor.is_floating_point() else wanted[name]
        assert torch.equal(tensor.to(own_tensor.dtype), own_tensor), name


@torch.no_grad()
def test_076_a_routers_score_is_no_part_of_what_an_expert_reads() -> None:
    """Scores that underflow, which made not-a-numbers of inputs: experts read the norm's output, and only routed tokens."""
    model, own = decoder("mixtral"), samples("mixtral")
    for block in model.layers:
        block.mlp.router.weight.mul_(1e4)
    assert awq.search(SMALL, model, own) is not None
    (batch,) = enter(model, own, len(own.ids))
    read: list[Tensor] = []
    normed: list[Tensor] = []
    block: Any = model.layers[0]
    block.mlp.up.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    block.mlp_norm.register_forward_hook(lambda _, given, out: normed.append(out))
    grams = gather(model, 0, block, [batch])
    assert len(read[0]) == own.tokens * model.shape.topk  # type: ignore[attr-defined]
    rows = {row.numpy().tobytes() for row in normed[0]}
    assert all(row.numpy().tobytes() in rows for row in read[0])
    assert all(torch.isfinite(gram.total).all() for gram in grams["mlp.down"])


def test_077_a_router_stays_in_floating_point_however_few_its_outputs(tmp_path: Path) -> None:
    """Three outputs are fewer than a word has integers."""
    model = decoder("mixtral")
    made, table = compressed(model, samples("mixtral"))
    save_compressed(made, config_of("mixtral"), tmp_path / "m")
    ignored = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]["ignore"]
    read, _ = load_model(open_folder(tmp_path / "m"), dtype=torch.float32)
    for number, layer in enumerate(table.layers):
        router: Any = made.layers[number].mlp.router
        assert type(router).__name__ == "Linear"
        scale = torch.tensor(next(row.scale for row in layer.folds if row.source == "mlp_norm") or (1.0,))
        before: Any = model.layers[number].mlp.router
        torch.testing.assert_close(router.weight, before.weight * scale)
        assert any(f"layers.{number}.block_sparse_moe.gate" in name for name in ignored)
        torch.testing.assert_close(read.layers[number].mlp.router.weight, router.weight, rtol=1e-3, atol=1e-6)
    scheme = IntWeights(4, 32)
    few = rtn.integers(torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), scheme)
    assert torch.equal(Int4Linear(scheme, 64, few).integers.values, few.values), (
        "and a matrix of three outputs is packed"
    )


@torch.no_grad()
def test_078_dead_channels_and_two_tokens_end_no_search() -> None:
    """What is read has rank two and channels that are always zero: nothing is inverted, so nothing can fail to be."""
    model, own = decoder("llama"), samples("llama", (2,))
    for block in model.layers:
        block.attention_norm.weight[::3] = 0
        block.mlp_norm.weight[::3] = 0
        block.mlp.up.weight[::4] = 0
    made, table = compressed(model, own)
    rows = [row for layer in table.layers for row in layer.folds]
    assert all(row.loss <= row.rounded for row in rows)
    assert all(min(row.scale) > 0 and max(row.scale) < float("inf") for row in rows if row.scale)
    plain = awq.apply(awq.Config(method="rtn", group=32), copy.deepcopy(model), Mesh())
    base = logits(model, own)
    assert torch.isfinite(logits(made, samples("llama"))).all()
    assert divergence(made, base, own) <= divergence(plain, base, own)


class Watched(TorchDispatchMode):
    """The most bytes that tensors made within hold at once, and the elements of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.most = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and not func.is_view:
                storage = tensor.untyped_storage()
                if storage._cdata not in self.held:
                    self.held[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.held.pop, storage._cdata, None)
                self.largest = max(self.largest, tensor.numel())
        self.most = max(self.most, sum(self.held.values()))
        return out


def search_memory(layers: int, rows: int) -> Watched:
    """A search of a model of so many layers on so many rows, two of which pass at a time."""
    sizes = config_of("llama").model_dump() | {"layers": layers}
    model = Decoder(ModelConfig.model_validate(sizes), torch.Generator().manual_seed(0)).eval()
    own = samples("llama", (24,) * rows)
    with Watched() as seen:
        awq.search(awq.Config(group=32, ratios=1), model, own)
    return seen


def test_080_082_a_search_holds_one_layer_and_no_activations() -> None:
    """More layers hold no more memory; more rows only their states between two layers, and no tensor is larger for them."""
    few, deep, long = (search_memory(*sizes) for sizes in ((2, 4), (5, 4), (2, 20)))
    assert deep.most <= few.most * 1.02
    assert long.largest == few.largest
    states = 4 * 64 * 24 * (20 - 4)  # bytes of the further rows
    assert few.most < long.most <= few.most + states


@pytest.mark.parametrize("name", FAMILIES)
def test_080_what_a_search_holds_is_told_before(name: str) -> None:
    model, own = decoder(name), samples(name)
    batches = enter(model, own)
    grams = gather(model, 0, model.layers[0], batches)
    sums = {id(gram): gram.total.nbytes + gram.sizes.nbytes for some in grams.values() for gram in some}
    held = sum(sums.values()) + sum(batch.states.nbytes for batch in batches)
    assert search_bytes(config_of(name), own.tokens) == held


def test_081_patterns_that_keep_every_matrix_are_refused() -> None:
    """A folder as large as before is no success. Modules that a reader of names would not find are found by what they are."""
    work = describe(config_of("llama"), Shapes(rows=1, seq=8))
    for keep in (("*",), ("attention.*", "mlp.*"), ("layers.0.*", "layers.1.*")):
        with pytest.raises(UserError, match="fits every matrix, so that none would be compressed"):
            awq.check(awq.Config(group=32, keep=keep), work, Mesh())
    awq.check(awq.Config(group=32, keep=("layers.0.*", "attention.*")), work, Mesh())
    for name in ("llama", "qwen3", ROUTED):
        made = awq.apply(awq.Config(method="rtn", group=32), decoder(name), Mesh())
        floats = {
            n.rsplit(".", 1)[-1]
            for n, m in made.named_modules()
            if isinstance(m, nn.Linear) and n.startswith("layers.")
        }
        assert floats <= {"router"}, name


@pytest.mark.sabotage
def test_sabotage_a_scale_for_what_reads_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.compress import awq_layer

    right = awq_layer.Gram

    class Anything(right):  # type: ignore[misc, valid-type]
        """Idle experts pass for such that read a token of ones."""

        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.add(torch.linspace(0.1, 3, width)[None])

    monkeypatch.setattr(awq_layer, "Gram", Anything)
    with pytest.raises((AssertionError, ValueError)):
        test_060_experts_that_no_token_reached_are_rounded_to_nearest_and_told()
