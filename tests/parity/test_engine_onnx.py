"""The runner of onnxruntime gives what the decoder's own modules give, in each format of its matrices."""

from __future__ import annotations

import pytest
import torch
from test_engine import FAMILIES, ids_of, make, requests, run

from burnish.errors import UserError
from burnish.export.onnx_parts import blocks8
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine, Limits
from burnish.serve.forward import Forward
from burnish.serve.pages import Pages
from burnish.serve.runners.onnx_runner import OnnxRunner
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.schedule import Piece, Schedule, Sequence
from burnish.techniques import awq

LIMITS = Limits(pages=200, page=4, rows=8, tokens=24)
SIZES = {"hidden": 64, "ffn": 96, "heads": 4, "head_dim": 16}
DENSE = [name for name in FAMILIES if name != "experts"]


def all_scores(runner, ids: list[int]) -> torch.Tensor:
    """Scores of every position of one text, as tokens that are guessed after the first, in two steps over one pool."""
    pages = Pages(200, 4)
    forward, half = Forward(runner, pages), len(ids) // 2
    pages.take()  # the text begins somewhere else than at the first slot
    sequence, found = Sequence(ids[:1], 1, len(ids)), []
    Schedule(pages, 1, len(ids)).reserve(sequence, len(ids))
    for start, end in ((0, half), (half, len(ids))):
        sequence.tokens = ids[: start + 1]
        found.append(forward([Piece(sequence, start, end - start, tuple(ids[start + 1 : end]))]))
    return torch.cat(found)


@pytest.mark.parametrize("size", [8, 16])  # the latter has a graph of all layers
@pytest.mark.parametrize("name", DENSE)
def test_a_float_decoder_writes_the_same(name, size):
    model, config = make(name, head_dim=size, hidden=6 * size)
    runner = OnnxRunner(model, config, 1)
    assert (runner.whole is not None) == (config.head_dim == 16)
    asked = requests(4)
    for at_once in (1, 100):
        found = run(Engine(runner, LIMITS), asked, at_once)
        plain = run(Engine(TorchRunner(model, config), LIMITS), asked, at_once)
        assert list(map(ids_of, found)) == list(map(ids_of, plain))


def test_threads_that_were_measured_write_the_same():
    model, config = make("qwen3")
    asked = requests(2)
    one, two = (run(Engine(OnnxRunner(model, config, threads), LIMITS), asked, 1) for threads in (1, 2))
    assert list(map(ids_of, one)) == list(map(ids_of, two))


@torch.inference_mode()
def check_own_slots() -> None:
    """The named check: a step of one sequence changes the slots of its new tokens in every layer and head, and no other."""
    model, config = make("qwen3")
    pages = Pages(12, 4)
    forward = Forward(OnnxRunner(model, config, 1), pages)
    assert forward.runner.whole is not None
    forward.pool.keys.uniform_()
    forward.pool.values.uniform_()
    sequence = Sequence(list(range(9)), 9, 12, pages=[9, 10, 11])  # to the very end of the pool
    before = forward.pool.keys.clone(), forward.pool.values.clone()
    forward([Piece(sequence, 2, 7)])
    for own, held in zip(before, (forward.pool.keys, forward.pool.values), strict=True):
        changed = (own != held).any(-1).all(0).all(0).nonzero().flatten().tolist()
        assert changed == list(range(36 + 2, 36 + 9))
        assert (own != held).any(-1).any(0).any(0).sum() == 7


def test_a_step_of_one_sequence_writes_nothing_but_its_own_slots():
    check_own_slots()


@pytest.mark.sabotage
def test_sabotage_every_sequence_begins_at_the_first_slot(monkeypatch):
    from burnish.serve.runners.onnx_whole import Whole

    plain = Whole._lie
    monkeypatch.setattr(Whole, "_lie", lambda self, pool, slot: plain(self, pool, 0))
    with pytest.raises(AssertionError):
        check_own_slots()


def check_scores(bound: float, accuracy: int, **settings) -> None:
    """The named check: scores of a decoder of 4-bit matrices, beside those of its own modules."""
    from test_engine import SIZES as OTHERS

    from burnish.config import ModelConfig

    config = ModelConfig(**OTHERS | SIZES | {"init_std": 0.15})
    model = Decoder(config, torch.Generator().manual_seed(0)).eval()
    awq.apply(awq.Config(method="rtn", group=32, dtype="float32", **settings), model, Mesh())
    ids = [(7 * k) % 97 for k in range(50)]
    found = all_scores(OnnxRunner(model, config, 1, accuracy=accuracy), ids)
    plain = all_scores(TorchRunner(model, config), ids)
    assert (found - plain).norm() < bound * plain.norm()


@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bits_with_float_inputs(symmetric):
    check_scores(1e-4, accuracy=1, symmetric=symmetric)


@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bits_with_rounded_inputs_stay_near(symmetric):
    check_scores(0.05, accuracy=4, symmetric=symmetric)


def test_a_vocabulary_of_eight_bits_is_looked_up_and_multiplied():
    model, config = make("one key head")  # tied
    words = blocks8(model.head.weight.detach().numpy(), 16)
    ids = [3, 5, 8, 13, 21, 34]
    plain = all_scores(TorchRunner(model, config), ids)
    found = all_scores(OnnxRunner(model, config, 1, words, accuracy=1), ids)
    assert 0 < (found - plain).abs().max() < 0.05 * plain.abs().max()


def check_blocks(bound: float, accuracy: int) -> None:
    """The named check: scores of matrices that lie on the grid of 4-bit blocks, beside those of the same in float."""
    from test_engine import SIZES as OTHERS

    from burnish.config import ModelConfig

    config = ModelConfig(**OTHERS | SIZES | {"init_std": 0.15})
    model = Decoder(config, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for module in [part for layer in model.layers for part in layer.modules() if isinstance(part, torch.nn.Linear)]:
            apart = module.weight.unflatten(1, (-1, 32))
            least, most = (edge[..., None] for edge in apart.aminmax(dim=-1))
            step = (most - least) / 15
            apart.copy_(((apart - least) / step).round() * step + least)
    ids = [(7 * k) % 97 for k in range(50)]
    plain = all_scores(TorchRunner(model, config), ids)
    found = all_scores(OnnxRunner(model, config, 1, weights="q4", accuracy=accuracy), ids)
    assert (found - plain).norm() < bound * plain.norm()


def test_weights_of_four_bit_blocks_are_kept_exactly():
    check_blocks(1e-5, accuracy=1)
    check_blocks(0.05, accuracy=4)


@pytest.mark.sabotage
def test_sabotage_the_middle_of_a_block_forgotten(monkeypatch):
    from burnish.serve.runners import blocks

    monkeypatch.setattr(blocks, "MIDDLE", 0)
    with pytest.raises(AssertionError):
        check_blocks(1e-5, accuracy=1)


@pytest.mark.parametrize("scales", [(0.1, 0.1), (0.1, 0.2)])
def test_matrices_that_round_one_input_are_one_only_where_they_do_it_alike(scales):
    import numpy as np

    from burnish.export.onnx_matrix import Matrix
    from burnish.serve.runners.onnx_layers import stacked
    from burnish.weight_format import IntWeights

    weight, scale = np.ones((2, 4), np.int8), np.ones(2, np.float32)
    parts = [
        Matrix(
            IntWeights(8, -1, True, "float32", "tensor"),
            {"weight": weight, "weight_scale": scale, "input_scale": np.array(own, np.float32)},
            None,
        )
        for own in scales
    ]
    if scales[0] != scales[1]:
        with pytest.raises(UserError, match="use the runner torch"):
            stacked(parts)
    else:
        assert stacked(parts).shape == (4, 4)


def test_experts_are_refused():
    model, config = make("experts")
    with pytest.raises(UserError, match="use the runner torch"):
        OnnxRunner(model, config, 1)


@pytest.mark.sabotage
def test_sabotage_gate_and_up_exchanged(monkeypatch):
    from burnish.serve.runners import onnx_layers

    plain = onnx_layers.stacked
    monkeypatch.setattr(onnx_layers, "stacked", lambda parts: plain(parts if len(parts) > 2 else parts[::-1]))
    with pytest.raises(AssertionError):
        check_scores(1e-4, accuracy=1)
