"""The search looks at every legal mapping, drops only what cannot fit, and ranks what is left."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import UserError
from burnish.mapping import Mapping
from burnish.planner import Request, candidates, legal, request, search
from burnish.planner.choice import choices
from burnish.planner.pricing import Priced, capacity, price_of
from burnish.planner.request import KEYS, parse_fix

ASKED = {
    "dense": request("llama3-8b", "h100-sxm:2x8", 8192, 64),
    "too large for most": request("llama3-70b", "h100-sxm:4x8", 8192, 64),
    "experts": request("mixtral-8x7b", "h100-sxm:2x8", 4096, 64),
    "small cards": request("llama3-8b", "a100-40gb:1x8", 4096, 24, fix={"cp": 1}),
    "scores stored": request("llama3-8b", "a100-80gb:1x4", 2048, 16, attention="unfused"),
}


def all_rows(asked: Request) -> list[candidates.Row]:
    """Every candidate, without a look at memory."""
    return candidates.full(asked, candidates.lean(asked, legal.fixed_degrees(asked)))


@pytest.mark.parametrize("name", ASKED)
def test_what_memory_drops_early_does_not_fit(name: str) -> None:
    """Degrees are dropped by their leanest settings; pricing all settings of all degrees finds the same mappings."""
    asked = ASKED[name]
    mapping = candidates.mapping_of(asked, all_rows(asked))
    fits = price_of(asked, mapping).peak <= capacity(asked)
    found = search.search(asked)
    assert 0 < found.count == fits.sum() < len(fits)
    kept = {candidates.one(found.mapping, k) for k in range(found.count)}
    assert kept == {candidates.one(mapping, int(k)) for k in np.flatnonzero(fits)}


@pytest.mark.parametrize("name", ASKED)
def test_every_candidate_is_legal_and_there_once(name: str) -> None:
    asked = ASKED[name]
    m = candidates.mapping_of(asked, all_rows(asked))
    model, group = asked.model, m.dp * m.cp
    assert np.all(m.tp * m.pp * m.dp * m.cp == asked.cluster.gpus)
    assert not np.any(asked.batch % (m.dp * m.micro_batch))
    assert not np.any(model.heads % m.tp)
    assert np.all(m.pp * m.vpp <= model.layers)
    assert not np.any((m.vpp > 1) & (asked.batch // (m.dp * m.micro_batch) % m.pp > 0))
    assert not np.any(group % np.where(m.shard > 0, m.shard, 1))
    assert not np.any((group == 1) & (m.zero > 0))
    assert not np.any(m.tp * group % (m.ep * m.etp))
    assert np.all((m.ep == 1) if not model.experts else (model.experts % m.ep == 0))
    assert len({candidates.one(m, k) for k in range(len(m.tp))}) == len(m.tp)


def test_the_best_is_the_best_of_a_plain_loop() -> None:
    """Written out as loops over mappings of numbers, with nothing shared but the price."""
    asked = replace(ASKED["small cards"], fix={"cp": 1, "vpp": 1, "shard": 0})
    fastest, count = np.inf, 0
    for tp, pp, zero, recompute, micro in product(
        (1, 2, 4, 8), (1, 2, 4, 8), range(4), (0, 3), (1, 2, 3, 4, 6, 8, 12, 24)
    ):
        dp = 8 // (tp * pp)
        if (
            tp * pp * dp != 8
            or asked.batch % (dp * micro)
            or (dp == 1 and zero)
            or (micro & (micro - 1) and micro > 8 and micro * dp != 24)
        ):
            continue
        count += 1
        made = choices(
            asked, [Mapping(tp=tp, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro, sp=int(tp > 1))]
        )[0]
        if made.fits:
            fastest = min(fastest, made.seconds)
    found = search.search(asked)
    assert len(all_rows(asked)) == count
    assert found.price.seconds.min() == pytest.approx(fastest, rel=1e-12)
    assert found.price.seconds[found.order[0]] <= fastest * (1 + search.TIE)


def mapping_with(**axes: list[int]) -> Mapping:
    size = len(next(iter(axes.values())))
    plain = {axis: np.full(size, getattr(Mapping, axis)) for axis in candidates.AXES}
    return Mapping(**{**plain, **{axis: np.array(values) for axis, values in axes.items()}})


def test_ties_go_to_fewer_axes_then_lower_stage_then_less_recompute() -> None:
    mapping = mapping_with(
        tp=[8, 8, 1, 1, 1, 1], pp=[2, 1, 1, 1, 1, 1], zero=[0, 0, 3, 2, 2, 0], recompute=[0, 0, 0, 3, 0, 0]
    )
    order, tied = search.ranked(mapping, np.array([1.0, 1.001, 1.002, 1.003, 1.004, 1.5]))
    assert tied == 5
    assert order.tolist() == [4, 3, 2, 1, 0, 5]


def test_what_is_slower_than_a_tie_is_not_preferred_for_being_simple() -> None:
    order, tied = search.ranked(mapping_with(tp=[8, 1]), np.array([1.0, 1.0 + 1.5 * search.TIE]))
    assert (order.tolist(), tied) == ([0, 1], 1)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from((8, 16, 32))), min_size=1, max_size=25))
def test_the_pareto_set_is_what_nothing_beats(points: list[tuple[int, int, int]]) -> None:
    seconds, peak, gpus = (np.array(values, dtype=np.int64) for values in zip(*points, strict=True))
    priced = Priced(seconds * 1.0, {}, {}, peak * 1.0, seconds * 0.0)
    found = search.Found(mapping_with(dp=gpus.tolist()), priced, np.arange(len(points)), 1, len(points))
    kept = search.pareto(found)

    def beats(a: int, b: int) -> bool:
        ours, theirs = points[a], points[b]
        return all(x <= y for x, y in zip(ours, theirs, strict=True)) and ours != theirs

    assert {points[k] for k in kept} == {
        p for k, p in enumerate(points) if not any(beats(j, k) for j in range(len(points)))
    }
    assert len({points[k] for k in kept}) == len(kept)


def test_fewer_gpus_are_used_only_where_that_is_allowed() -> None:
    asked = replace(ASKED["dense"], fewer_gpus=True)
    found = search.search(asked)
    used = set(np.asarray(found.mapping.gpus)[search.pareto(found)].tolist())
    assert max(used) == asked.cluster.gpus
    assert len(used) > 1
    assert set(np.asarray(search.search(ASKED["dense"]).mapping.gpus).tolist()) == {asked.cluster.gpus}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(("llama3-8b", "mixtral-8x7b", "gpt2")),
    st.integers(1, 6),
    st.sampled_from((1, 4, 6, 8)),
    st.integers(1, 96),
    st.dictionaries(st.sampled_from(("tp", "pp", "dp", "cp", "ep")), st.integers(1, 16), max_size=3),
)
def test_illegal_and_legal_are_opposites(
    model: str, nodes: int, per_node: int, batch: int, fix: dict[str, int]
) -> None:
    """Either some mapping has what is fixed, or one line says why not and names values of which each is legal."""
    asked = request(model, f"h100-sxm:{nodes}x{per_node}", 1024, batch, fix=fix)
    every = legal.degrees(asked, every=True)
    having = [d for d in every if all(getattr(d, key) == value for key, value in fix.items())]
    said = legal.why_illegal(asked, fix)
    assert (said is None) == bool(having or not every)
    if said is None and having:
        assert all(all(getattr(d, key) == value for key, value in fix.items()) for d in legal.fixed_degrees(asked))
    else:
        with pytest.raises(UserError) as refused:
            legal.fixed_degrees(asked)
        assert len(str(refused.value).splitlines()) == 1


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    fixed, said = None, ""
    try:
        fixed = parse_fix([text])
    except UserError as error:
        said = str(error)
    assert set(fixed) <= set(KEYS) if fixed else said.startswith("--fix")


@given(st.dictionaries(st.sampled_from(("tp", "pp", "dp", "micro_batch", "vpp")), st.integers(1, 10**6), min_size=1))
def test_what_is_fixed_is_read_as_written(fixed: dict[str, int]) -> None:
    words = [f"{key}={value}" for key, value in fixed.items()]
    assert parse_fix(words) == parse_fix([", ".join(words)]) == fixed
