"""Sampling, stop strings, half characters, batches of unequal prompts, and what generation refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.models.cache import KVCache
from burnish.models.decoder import Decoder
from burnish.serve.generate import complete, generate, left_padded, unpadded
from burnish.serve.sampling import Sampling, choose, kept, row_generators
from burnish.serve.text import TextStream

SHAPE = ModelConfig(
    vocab=101, hidden=48, ffn=80, layers=2, heads=6, kv_heads=2, head_dim=16, init_std=0.3, max_positions=48
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]
TOY = torch.tensor([[2.0, 1.5, 1.0, 0.5]])


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder(SHAPE, torch.Generator().manual_seed(0))


def letters(ids: list[int]) -> str:
    return "".join(chr(97 + i % 26) for i in ids)


def read_bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def draw(options: Sampling, times: int = 4000, logits: torch.Tensor = TOY) -> np.ndarray:
    """Share of each token in `times` draws."""
    generators = row_generators(options.seed, 1)
    tokens = [choose(logits, options, generators)[0] for _ in range(times)]
    return np.bincount(tokens, minlength=logits.shape[1]) / times


def test_draws_follow_the_softmax_at_their_temperature():
    for temperature in (1.0, 0.5):
        wanted = (TOY[0] / temperature).softmax(0).numpy()
        np.testing.assert_allclose(draw(Sampling(temperature=temperature, seed=1)), wanted, atol=0.03)


def test_top_k_keeps_the_k_largest():
    shares = draw(Sampling(temperature=1.0, top_k=2))
    np.testing.assert_allclose(shares[:2], TOY[0, :2].softmax(0).numpy(), atol=0.03)
    assert shares[2:].tolist() == [0, 0]


@pytest.mark.parametrize(("top_p", "count"), [(0.01, 1), (0.45, 1), (0.46, 2), (0.7, 2), (0.8, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_holds_p(top_p, count):
    """Probabilities are 0.455, 0.276, 0.167, 0.102."""
    ids, cumulative = kept(TOY.flip(1), Sampling(temperature=1.0, top_p=top_p))
    assert ids.tolist() == [[3, 2, 1, 0]]
    assert int((cumulative[0].diff(prepend=torch.zeros(1)) > 0).sum()) == count


def test_top_k_comes_before_top_p():
    """Of the two largest, the first holds 0.62 by itself; of all four it holds 0.455."""
    assert draw(Sampling(temperature=1.0, top_k=2, top_p=0.6), 200).tolist() == [1, 0, 0, 0]


def test_extreme_temperatures():
    assert draw(Sampling(temperature=1e-4), 50).tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(draw(Sampling(temperature=1e4)), [0.25] * 4, atol=0.03)


def test_scores_that_are_not_finite_are_refused():
    logits = torch.zeros(3, 4)
    logits[1, 2] = float("nan")
    with pytest.raises(UserError, match=r"row 1: .*not finite"):
        choose(logits, Sampling(), row_generators(0, 3))


def test_the_seed_decides_and_rows_do_not_disturb_each_other(model):
    options = Sampling(max_new_tokens=20, temperature=1.0, top_p=0.9, seed=3)
    together = generate(model, PROMPTS, options)
    assert together == generate(model, PROMPTS, options)
    assert together[0] == generate(model, PROMPTS[:1], options)[0]
    assert together[:2] == generate(model, [*PROMPTS[:2], [50] * 15], options)[:2]
    assert together != generate(model, PROMPTS, Sampling(max_new_tokens=20, temperature=1.0, top_p=0.9, seed=4))
    same = generate(model, [[1, 2]] * 2, options)
    assert same[0] != same[1]


def test_flt_098_unequal_prompts_greedy_together_equal_alone(model):
    options = Sampling(max_new_tokens=24)
    assert generate(model, PROMPTS, options) == [generate(model, [prompt], options)[0] for prompt in PROMPTS]


@pytest.mark.sabotage
def test_flt_098_notices_attended_pads(model, monkeypatch):
    right = KVCache.visible

    def visible(cache: KVCache, count: int, window: int = 0):
        cache.real_BL[:, : cache.used] = True
        return right(cache, count, window)

    monkeypatch.setattr(KVCache, "visible", visible)
    with pytest.raises(AssertionError):
        test_flt_098_unequal_prompts_greedy_together_equal_alone(model)


def test_cached_greedy_equals_reading_everything_again(model):
    found = generate(model, PROMPTS, Sampling(max_new_tokens=12))
    for prompt, new in zip(PROMPTS, found, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(12):
                ids.append(int(model.logits(model(torch.tensor([ids]))[0, -1]).argmax()))
        assert ids[len(prompt) :] == new


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_models_generate(dtype):
    half = Decoder(SHAPE, torch.Generator().manual_seed(0)).to(dtype)
    assert [len(row) for row in generate(half, PROMPTS, Sampling(max_new_tokens=5))] == [5, 5, 5]


def test_flt_109_each_row_ends_by_itself(model):
    plain = generate(model, PROMPTS, Sampling(max_new_tokens=20))
    ends = (plain[0][4], plain[1][7])
    found = complete(model, PROMPTS, Sampling(max_new_tokens=20, eos=ends))
    for row, before in zip(found, plain, strict=True):
        first = next((at for at, token in enumerate(before) if token in ends), 20)
        assert row.ids == before[:first]
        assert row.reason == ("eos" if first < 20 else "length")


def test_flt_109_a_stop_string_over_two_tokens_ends_its_row_only(model):
    plain = complete(model, PROMPTS, Sampling(max_new_tokens=20), decode=letters)
    stop = plain[1].text[5:7]
    found = complete(model, PROMPTS, Sampling(max_new_tokens=20, stop=(stop,)), decode=letters)
    for row, before in zip(found, plain, strict=True):
        assert row.text == before.text.split(stop)[0]
        assert row.reason == ("stop" if stop in before.text else "length")
        assert letters(row.ids) == row.text
    assert found[1].reason == "stop"
    assert len(found[1].text) <= 5


def test_streamed_pieces_add_up_to_the_text(model):
    pieces = ["", "", ""]

    def emit(row: int, text: str) -> None:
        pieces[row] += text

    options = Sampling(max_new_tokens=20, stop=("wm", "chq"))
    found = complete(model, PROMPTS, options, decode=letters, emit=emit)
    assert pieces == [row.text for row in found]


def stream(chunks: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """Each chunk is one token; returns what each push gave, the end last."""
    made = TextStream(lambda ids: b"".join(chunks[i] for i in ids).decode("utf-8", errors="replace"), stop)
    return [made.push(i) for i in range(len(chunks))] + [made.finish()], made


def test_a_character_waits_for_its_last_byte():
    euro, smile = "€".encode(), "🙂".encode()
    given, made = stream([b"a", euro[:1], euro[1:2], euro[2:] + b"b", smile[:3], smile[3:]])
    assert given == ["a", "", "", "€b", "", "🙂", ""]
    assert made.text == "a€b🙂"


def test_a_character_that_never_ends_is_dropped():
    given, made = stream([b"a", "é".encode()[:1]])
    assert given == ["a", "", ""]
    assert made.text == "a"


@pytest.mark.parametrize(
    ("chunks", "stop", "text"),
    [
        ([b"one", b" tw", b"o th", b"ree"], ("two",), "one "),
        ([b"a", b"b", b"a", b"b", b"c"], ("abc",), "ab"),
        ([b"x", b"yz."], ("z", "yz"), "x"),  # the earlier of two
        ([b"\n", b"\nQ"], ("\n\n",), ""),
        ([b"caf\xc3", b"\xa9 au", b" lait"], ("é a",), "caf"),
        ([b"ab", b"ab"], ("abc",), "abab"),  # only ever begun
    ],
)
def test_text_ends_before_a_stop_string(chunks, stop, text):
    given, made = stream(chunks, stop)
    assert "".join(given) == made.text == text
    shown = ""
    for piece in given:
        shown += piece
        assert text.startswith(shown)  # nothing shown is taken back
    assert made.stopped == (stop != ("abc",) or text == "ab")


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("ab é€🙂\n"), max_size=25),
    stop=st.text(st.sampled_from("ab é€"), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 60)),
)
def test_any_split_into_tokens_gives_the_same_text(text, stop, cuts):
    data = text.encode()
    edges = sorted({0, len(data)} | {c for c in cuts if c < len(data)})
    chunks = [data[a:b] for a, b in itertools.pairwise(edges)]
    given_text, made = stream(chunks, (stop,))
    assert "".join(given_text) == made.text == text.split(stop)[0]
    assert made.stopped == (stop in text)


def test_left_padding_and_back():
    ids, mask = left_padded(PROMPTS)
    assert ids.shape == (3, 7)
    assert mask.sum(1).tolist() == [3, 7, 1]
    assert mask[:, -1].all()
    assert unpadded(ids, mask) == PROMPTS
    with pytest.raises(UserError, match="row 1: pads lie between"):
        unpadded(torch.ones(2, 4), torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1]]))


def test_no_prompts_give_no_rows(model):
    assert generate(model, [], Sampling()) == []


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1], [5, 101]], {}, r"prompt 1: token 101 .*0\.\.100"),
        ([[1], [-1, 3]], {}, "prompt 1: token"),
        ([[1], [2] * 40], {"max_new_tokens": 9}, "max_new_tokens must be 8 or less"),
        ([[2] * 48], {"max_new_tokens": 1}, "the prompt must be under 48"),
        ([[1]], {"stop": ("x",)}, "decode"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(model, prompts, options, message):
    with pytest.raises(UserError, match=message):
        generate(model, prompts, Sampling(**{"max_new_tokens": 4} | options))


def test_the_last_position_can_be_used(model):
    assert len(generate(model, [[2] * 40], Sampling(max_new_tokens=8))[0]) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
        {"stop": ("",)},
        {"stop": "x"},
    ],
)
def test_wrong_options_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Sampling(**wrong)
