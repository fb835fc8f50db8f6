"""The lean layers: right gradients, exactly the saved bytes their docstrings state, no mask where none is needed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from burnish.config import ModelConfig
from burnish.models import layers
from burnish.models.attention import Pattern, attend, check_attention
from burnish.models.cache import KVCache
from burnish.models.decoder import Decoder
from burnish.models.layers import RMSNorm, gated_silu
from burnish.models.rotary import rotary_angles, rotate

SHAPE = ModelConfig(vocab=101, hidden=48, ffn=80, layers=2, heads=6, kv_heads=2, head_dim=16, init_std=0.2)
ROWS, LENGTH = 3, 17
PACKED = ((17,), (3, 14), (5, 6, 6))


def model_and_ids(shape: ModelConfig = SHAPE, seed: int = 0) -> tuple[Decoder, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return Decoder(shape, draw), torch.randint(shape.vocab, (ROWS, LENGTH), generator=draw)


def double(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_norm_gradients_by_finite_differences():
    assert torch.autograd.gradcheck(lambda x, w: layers._RMSNorm.apply(x, w, 1e-3), (double(2, 3, 7), double(7)))


def test_gated_silu_gradients_by_finite_differences():
    assert torch.autograd.gradcheck(gated_silu, (double(2, 3, 7), double(2, 3, 7)))


def test_rotary_gradients_by_finite_differences():
    rotary = rotary_angles(torch.tensor([[0, 1, 5], [2, 3, 4]]), 6, 100.0, torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotate(x, rotary), (double(2, 3, 2, 6),))


def test_norm_equals_torchs_own():
    x, norm = torch.randn(2, 5, 33), RMSNorm(33, 1e-5)
    with torch.no_grad():
        norm.weight.normal_()
    torch.testing.assert_close(norm(x), F.rms_norm(x, (33,), norm.weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_norm_takes_its_statistics_in_float32(dtype):
    x = torch.full((2, 3, 1024), 300.0, dtype=dtype)  # the sum of squares is beyond float16
    x[1] = 3e-4  # and these squares are below it
    norm = RMSNorm(1024, 1e-12).to(dtype)
    y = norm(x)
    assert y.dtype == dtype
    assert torch.equal(y[0], torch.ones_like(y[0]))
    torch.testing.assert_close(
        y.float(), F.rms_norm(x.float(), (1024,), eps=1e-12), rtol=2 * torch.finfo(dtype).eps, atol=0
    )


def test_rotary_turns_element_i_with_element_i_plus_half():
    x = torch.zeros(1, 2, 1, 6)
    x[..., 0] = 1.0
    turned = rotate(x, rotary_angles(torch.tensor([[0, 2]]), 6, 100.0, torch.float32))
    angle = torch.tensor(2.0)
    assert turned[0, 0, 0].tolist() == [1, 0, 0, 0, 0, 0]
    torch.testing.assert_close(turned[0, 1, 0], torch.tensor([angle.cos(), 0, 0, angle.sin(), 0, 0]))


def saved_bytes(model: Decoder, run) -> int:
    """Bytes of distinct memory, parameters left out, that `run` keeps for the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(storage.nbytes() for storage in kept.values())


def layer_bytes(shape: ModelConfig, packed: bool, element: int, statistic: int) -> int:
    heads = (2 * shape.heads + 2 * shape.kv_heads + (shape.heads if packed else 0)) * shape.head_dim
    return ROWS * LENGTH * ((4 * shape.hidden + heads + 3 * shape.ffn) * element + (2 + shape.heads) * statistic)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("dtype", "statistic"), [(torch.float32, 4), (torch.bfloat16, 4), (torch.float64, 8)])
def test_saved_bytes_are_those_of_the_formula(packed, dtype, statistic):
    segments = PACKED if packed else None
    totals = []
    for count in (1, 2):
        shape = SHAPE.model_copy(update={"layers": count})
        model, ids = model_and_ids(shape)
        model.to(dtype)
        totals.append(saved_bytes(model, lambda model=model, ids=ids: model(ids, segments=segments)))
    one_layer = layer_bytes(SHAPE, packed, dtype.itemsize, statistic)
    assert totals[1] - totals[0] == one_layer
    tokens, angles = ROWS * LENGTH, LENGTH * (ROWS if packed else 1) * SHAPE.head_dim
    rest = tokens * 8 + (angles + tokens * SHAPE.hidden) * dtype.itemsize + tokens * statistic
    assert totals[0] - one_layer == rest


@pytest.fixture
def masks(monkeypatch):
    """What attention was asked for: one (shape of the mask or None, is_causal) a call."""
    seen = []
    right = F.scaled_dot_product_attention

    def record(q, k, v, attn_mask=None, **options):
        seen.append((None if attn_mask is None else tuple(attn_mask.shape), options["is_causal"]))
        return right(q, k, v, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    return seen


def test_no_mask_is_made_where_none_is_needed(masks):
    model, ids = model_and_ids()
    full = torch.ones(ids.shape, dtype=torch.bool)
    right = full.clone()
    right[1, 9:] = False
    model(ids)
    model(ids, mask_BS=full)
    model(ids, mask_BS=right)
    model(ids, segments=((LENGTH,),) * ROWS)
    cache = KVCache(SHAPE, ROWS, LENGTH + 1)
    with torch.no_grad():
        model(ids, cache=cache)
    assert masks == [(None, True)] * 5 * SHAPE.layers
    masks.clear()
    with torch.no_grad():
        model(ids[:, :1], cache=cache)
    assert masks == [(None, False)] * SHAPE.layers


def test_packed_rows_make_no_mask_and_one_call_a_piece(masks):
    model, ids = model_and_ids()
    model(ids, segments=PACKED)
    assert masks == [(None, True)] * 6 * SHAPE.layers


def test_left_padding_makes_one_mask(masks):
    model, ids = model_and_ids()
    mask = torch.ones(ids.shape, dtype=torch.bool)
    mask[1, :4] = False
    model(ids, mask_BS=mask)
    assert masks == [((ROWS, 1, LENGTH, LENGTH), False)] * SHAPE.layers


def test_a_row_of_pads_gives_finite_values_and_gradients():
    model, ids = model_and_ids()
    mask = torch.ones(ids.shape, dtype=torch.bool)
    mask[0], mask[1, :4] = False, False
    model(ids, mask_BS=mask)[mask].square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_a_full_cache_is_refused():
    model, ids = model_and_ids()
    with torch.no_grad(), pytest.raises(ValueError, match="at least 17 long"):
        model(ids, cache=KVCache(SHAPE, ROWS, LENGTH - 1))


def test_a_cache_takes_no_gradients():
    model, ids = model_and_ids()
    with pytest.raises(ValueError, match="no_grad"):
        model(ids, cache=KVCache(SHAPE, ROWS, LENGTH))


def gradients(model: Decoder, run) -> list[torch.Tensor]:
    model.zero_grad()
    run().square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_non_reentrant_checkpointing_gives_the_same_gradients_and_saves_less():
    model, ids = model_and_ids()

    def run(recompute: bool) -> torch.Tensor:
        x, rotary = model.embed(ids), rotary_angles(torch.arange(LENGTH)[None], 16, SHAPE.rope_theta, torch.float32)
        for block in model.layers:
            arguments = (x, rotary, Pattern())
            x = checkpoint(block, *arguments, use_reentrant=False) if recompute else block(*arguments)
        return x

    plain, again = (gradients(model, lambda recompute=r: run(recompute)) for r in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert saved_bytes(model, lambda: run(True)) < saved_bytes(model, lambda: run(False)) / 4


@pytest.mark.slow
@pytest.mark.parametrize("segments", [None, PACKED])
def test_compiled_without_a_graph_break(segments):
    model, ids = model_and_ids()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(ids, segments=segments), model(ids, segments=segments), rtol=1e-4, atol=1e-4)
    plain = gradients(model, lambda: model(ids, segments=segments))
    for found, wanted in zip(gradients(model, lambda: compiled(ids, segments=segments)), plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_weights_depend_on_the_generator_alone():
    first, second = (Decoder(SHAPE, torch.Generator().manual_seed(4)) for _ in range(2))
    other = Decoder(SHAPE, torch.Generator().manual_seed(5))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embed.weight, other.embed.weight)
    torch.manual_seed(4)
    assert torch.equal(Decoder(SHAPE).embed.weight, first.embed.weight)
    matrix = first.layers[1].mlp.up.weight
    assert abs(matrix.std().item() / SHAPE.init_std - 1) < 0.05
    assert torch.equal(first.norm.weight, torch.ones(SHAPE.hidden))


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_the_config_counts_them(tied):
    shape = SHAPE.model_copy(update={"tied": tied})
    model, _ = model_and_ids(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    assert (model.head.weight is model.embed.weight) == tied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_flt_039_attention_passes_its_own_check(dtype):
    assert check_attention("cpu", dtype) < 0.1


def _zeros(q, k, v, **_):
    return torch.zeros_like(q) + 0 * (q.sum() + k.sum() + v.sum())


def _nans(q, k, v, **_):
    return _zeros(q, k, v) + float("nan")


def _not_causal(q, k, v, **options):
    return _RIGHT(q, k, v, **{**options, "is_causal": False})


_RIGHT = F.scaled_dot_product_attention


@pytest.mark.sabotage
@pytest.mark.parametrize("backend", [_zeros, _nans, _not_causal])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flt_039_a_backend_that_returns_garbage_is_named(backend, dtype, monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", backend)
    with pytest.raises(RuntimeError, match="attention on cpu"):
        check_attention("cpu", dtype)


def test_query_heads_read_the_key_head_of_their_group():
    q, k, v = torch.randn(2, 5, 6, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    found = attend(q, k, v, Pattern())
    for head in range(6):
        alone = attend(q[:, :, head : head + 1], k[:, :, head // 3, None], v[:, :, head // 3, None], Pattern())
        torch.testing.assert_close(found[:, :, head], alone[:, :, 0])
