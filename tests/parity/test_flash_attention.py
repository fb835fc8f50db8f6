"""Attention by tiles and plain attention against float64: outputs and gradients, every shape that a pack can have."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.config import ModelConfig
from burnish.encoders.config import EncoderConfig
from burnish.models.attention import Pattern, attend, check_attention, packed_runs
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder
from burnish.ops import flash_tiled
from burnish.ops.flash_attention import kernel_of, pack_attention
from burnish.ops.flash_tiles import Tiles
from flash_cases import CASES, NAMES, Case, errors, inputs, kernel, plain, reference, tensors, worst

BAR = 2.0
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
PATTERNS = {
    "causal": Pattern(),
    "all": Pattern(causal=False),
    "window": Pattern(window=7),
    "packed": Pattern(runs=packed_runs(((20, 10, 7), (37,)), 37)),
    "packed window": Pattern(window=4, runs=packed_runs(((37,), (1, 30, 6)), 37)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_tiles_are_as_near_to_float64_as_plain_attention(name: str, dtype: torch.dtype) -> None:
    found = errors(kernel("tiled"), CASES[name], dtype)
    assert worst(found) <= BAR, found


@pytest.mark.parametrize("name", CASES)
def test_tiles_and_plain_attention_are_the_formula_in_float64(name: str) -> None:
    wanted = tensors(reference, CASES[name], torch.float64)
    for function in (kernel("tiled", (5, 3)), kernel("tiled", (64, 64)), plain):
        for label, a, b in zip(NAMES, tensors(function, CASES[name], torch.float64), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11, msg=label)


@pytest.mark.parametrize("name", PATTERNS)
def test_every_kernel_has_the_signature_of_attend(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 37, 6, 24), (2, 37, 2, 24), (2, 37, 2, 24), (2, 37, 6, 24))
    q, k, v, grad = (torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes)
    results = []
    for function in (attend, kernel_of("plain", (8, 16)), kernel_of("tiled", (8, 16))):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = function(*leaves, PATTERNS[name])
        results.append((out, *torch.autograd.grad(out, leaves, grad)))
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [kernel("tiled"), plain])
def test_flt_036_a_query_without_visible_key_gives_0_and_has_gradient_0(function) -> None:
    """Queries of 76, 34 and 146 rows before one key each: all but the last of each see nothing."""
    case = CASES["queries that see nothing"]
    out, dq, dk, dv = tensors(function, case, torch.float16)
    last = torch.tensor(case.queries).cumsum(0) - 1
    blind = torch.ones(len(out), dtype=torch.bool).index_fill(0, last, False)
    assert out[blind].abs().max() == dq[blind].abs().max() == 0
    grad, values = inputs(case, torch.float16)[3], inputs(case, torch.float16)[2]
    assert torch.equal(out[last], values)
    assert torch.equal(dv, grad[last])
    assert all(bool(x.isfinite().all()) for x in (out, dq, dk, dv))


def test_flt_036_torchs_own_kernel_too() -> None:
    q, k, v = (torch.randn(2, n, 2, 8, requires_grad=True) for n in (9, 4, 4))
    out = attend(q, k, v, Pattern())
    out.sum().backward()
    assert not out[:, :5].any()
    assert not q.grad[:, :5].any()
    assert bool(q.grad[:, 6:].any())
    assert bool(torch.cat([out.flatten(), q.grad.flatten(), k.grad.flatten(), v.grad.flatten()]).isfinite().all())


def test_flt_038_rows_behind_the_last_sequence_are_refused() -> None:
    x = torch.randn(698, 2, 8)
    with pytest.raises(ValueError, match=r"last cumulative length of queries is 486 .*698 rows; cut it to 486"):
        pack_attention(x, x, x, ((137, 349), (137, 349)))
    with pytest.raises(ValueError, match="length of keys is 486"):
        pack_attention(x[:486], x, x, ((137, 349), (137, 349)))
    with pytest.raises(ValueError, match="2 sequences of queries, 1 of keys"):
        pack_attention(x[:486], x[:486], x[:486], ((137, 349), (486,)))


@pytest.mark.parametrize(
    ("heads", "changes", "message"),
    [
        ((3, 2), {}, "multiple of key heads"),
        ((2, 2), {"kernel": "triton"}, "does not run on cpu"),
        ((2, 2), {"window": (-2, 0)}, "no sizes"),
        ((2, 2), {"blocks": (0, 4)}, "no sizes"),
    ],
)
def test_what_no_kernel_computes_is_refused_in_one_line(heads: tuple, changes: dict, message: str) -> None:
    q, k = (torch.randn(5, count, 8) for count in heads)
    with pytest.raises(ValueError, match=message) as refused:
        pack_attention(q, k, k, ((5,), (5,)), **changes)
    assert "\n" not in str(refused.value)


lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=5)
reach = st.tuples(st.integers(-1, 6), st.integers(-1, 6))


@settings(max_examples=60, deadline=None)
@given(lengths, reach, st.tuples(st.integers(1, 7), st.integers(1, 7)), st.sampled_from([(1, 1), (4, 2), (3, 1)]))
def test_any_pack_any_window_any_tile(pack: list, window: tuple, blocks: tuple, heads: tuple) -> None:
    case = Case(tuple(q for q, _ in pack), tuple(k for _, k in pack), *heads, 4, window)
    wanted = tensors(reference, case, torch.float64)
    for a, b in zip(tensors(kernel("tiled", blocks), case, torch.float64), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@given(lengths, reach, st.integers(1, 5), st.integers(1, 5))
def test_tiles_seen_are_those_with_a_visible_pair(pack: list, window: tuple, block_q: int, block_k: int) -> None:
    tiles = Tiles(tuple(q for q, _ in pack), tuple(k for _, k in pack), *window, block_q, block_k)
    assert sum(group.sequences for group in tiles.groups()) == len(pack)
    for group in tiles.groups():
        shift = group.keys - group.queries
        pairs = {(q, k) for q in range(group.queries) for k in range(group.keys)}
        visible = {
            (q, k)
            for q, k in pairs
            if (window[0] < 0 or k >= q + shift - window[0]) and (window[1] < 0 or k <= q + shift + window[1])
        }
        for first in range(0, group.queries, block_q):
            queries = range(first, min(first + block_q, group.queries))
            start, stop = tiles.seen(group, first, queries.stop)
            mine = {(q, k) for q, k in visible if q in queries}
            assert all(start <= k < stop for _, k in mine)
            for at in range(start, stop, block_k):
                keys = range(at, min(at + block_k, stop))
                every = {(q, k) for q in queries for k in keys} <= mine
                assert tiles.whole(group, (first, queries.stop), (at, keys.stop)) == every


MODEL = ModelConfig(vocab=61, hidden=48, ffn=80, heads=6, kv_heads=2, layers=2, head_dim=8, family="mistral", window=9)


@pytest.mark.parametrize("segments", [None, ((30,), (9, 1, 20))])
@pytest.mark.parametrize("name", ["tiled", "plain"])
def test_a_decoder_computes_the_same_with_another_kernel(name: str, segments: tuple | None) -> None:
    model = Decoder(MODEL, torch.Generator().manual_seed(0)).double()
    ids = torch.randint(61, (2, 30), generator=torch.Generator().manual_seed(1))
    left = torch.ones(2, 30, dtype=torch.bool)
    left[1, :4] = False
    with torch.no_grad():
        before = [model(ids, segments=segments), model(ids, mask_BS=left)]
        for layer in model.layers:
            layer.attention.kernel = kernel_of(name, (8, 16))
        after = [model(ids, segments=segments), model(ids, mask_BS=left)]
    torch.testing.assert_close(after[0], before[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(after[1][left], before[1][left], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["tiled", "plain"])
def test_an_encoder_computes_the_same_with_another_kernel(name: str) -> None:
    config = EncoderConfig(vocab=97, hidden=48, ffn=77, layers=2, heads=6, table=64, init_std=0.15)
    model = Encoder(config, torch.Generator().manual_seed(0)).double()
    ids = torch.randint(97, (2, 30), generator=torch.Generator().manual_seed(1))
    given = ({"segments": ((30,), (9, 1, 20))}, {"mask_BS": torch.arange(30) < torch.tensor([[30], [17]])}, {})
    with torch.no_grad():
        before = [model(ids, **more) for more in given]
        for layer in model.layers:
            layer.attention.kernel = kernel_of(name, (8, 16))
        for more, wanted in zip(given, before, strict=True):
            torch.testing.assert_close(model(ids, **more), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_compiled_without_a_graph_break() -> None:
    q, k, v = (torch.randn(2, 33, n, 16, requires_grad=True) for n in (4, 2, 2))
    tiled = kernel_of("tiled", (16, 16))
    compiled = torch.compile(tiled, fullgraph=True)
    out, wanted = compiled(q, k, v, Pattern()), tiled(q, k, v, Pattern())
    torch.testing.assert_close(out, wanted)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, wanted)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.sabotage
def test_running_sums_that_are_not_rescaled_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_tiled, "_shrink", lambda highest, base: torch.ones_like(highest))
    with pytest.raises(AssertionError):
        test_tiles_are_as_near_to_float64_as_plain_attention("all keys", torch.float32)
    with pytest.raises(RuntimeError, match="is wrong"):
        check_attention("cpu", torch.float32, kernel_of("tiled", (16, 8)))


@pytest.mark.sabotage
def test_a_delta_left_out_of_the_scores_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = flash_tiled._back
    monkeypatch.setattr(flash_tiled, "_back", lambda g, q, delta, *more: right(g, q, torch.zeros_like(delta), *more))
    with pytest.raises(AssertionError):
        test_tiles_are_as_near_to_float64_as_plain_attention("causal", torch.float32)
