"""Inputs on which other tools' tensor parallelism went wrong."""

from __future__ import annotations

import numpy as np
import pytest
from test_tensor_parity import CLOSE, steps_of, worst

import ranks
from burnish import apply
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.techniques import tensor
from tensor_ranks import make_recipe, make_trainable


def test_flt_018_words_that_do_not_divide_leave_the_loss_as_it_is():
    """331 words over 4 ranks: 83, 83, 83, 82."""
    assert worst(make_recipe("llama untied", 4, optim__clip=0.1), steps_of(1)) <= CLOSE


def test_flt_019_a_vocabulary_of_250682_words_over_eight_ranks():
    model = ModelConfig(vocab=250_682, hidden=64, ffn=160, layers=1, heads=8, kv_heads=8, tied=False)
    work = describe(model, Shapes(rows=1, seq=64))
    tensor.check(tensor.Config(), work, Mesh(tp=8))
    words = []
    for rank in range(8):
        part = tensor.predict(tensor.Config(), work, Mesh(tp=8, tp_rank=rank))
        words.append({part.blocks[0].ops[0].shapes[0][0], part.blocks[-1].ops[-1].shapes[0][0]})
    assert [len(pair) for pair in words] == [1] * 8  # embedding and head alike
    assert sum(pair.pop() for pair in words) == 250_682


def rows_of(recipe: Recipe) -> tuple[int, int]:
    """Words that this rank's embedding and head have."""
    model = make_trainable(recipe).parts[0].model
    return model.embed.weight.shape[0], model.head.weight.shape[0]


def test_flt_021_embedding_and_head_are_cut_alike():
    assert ranks.run(4, rows_of, make_recipe("llama untied", 4)) == [(83, 83), (83, 83), (83, 83), (82, 82)]


def test_flt_027_a_row_that_does_not_divide_is_refused_with_those_that_would():
    wanted = r"data.seq 2050 does not divide over parallel.tp 4; use 2048 or 2052, or parallel.sequence=false"
    recipe = replace(load("quickstart"), {"model.max_positions": 4096})
    with pytest.raises(UserError, match=wanted):
        replace(recipe, {"data.seq": 2050, "parallel.tp": 4})
    assert replace(recipe, {"data.seq": 2050, "parallel.tp": 4, "parallel.sequence": False}).data.seq == 2050


def test_flt_029_packed_rows_of_odd_pieces_are_divided_as_they_are():
    """Pieces of 9, 20 and 7 tokens over two ranks of 18: a boundary lies within a piece."""
    assert worst(make_recipe("llama", 2, optim__clip=0.1), steps_of(1, (9, 20, 7))) <= CLOSE


def test_flt_031_one_norm_over_what_is_divided_and_what_is_not():
    """Clipping beside a norm of whole gradients (stage 0) and of shards (stage 2)."""
    for stage in (0, 2):
        recipe = make_recipe("qwen2", 2, dp=2, optim__clip=0.1, parallel__zero=stage)
        assert worst(recipe, steps_of(2)) <= CLOSE


def test_what_ranks_hold_together_is_the_model():
    """Parameters over all ranks, whole ones and repeated heads counted once."""
    recipe = make_recipe("llama untied", 4)
    work = describe(recipe.model, Shapes(rows=2, seq=36))
    total = 0
    for rank in range(4):
        part, _ = apply.predict(recipe, work, rank)
        for block in part.blocks:
            for op in block.ops:
                whole = op.split == "tokens"
                repeated = 2 if op.name in ("k", "v") else 1  # two key-value heads over four ranks
                count = block.layers * sum(int(np.prod(shape)) for shape in op.shapes)
                total += (count if rank == 0 else 0) if whole else count / repeated
    assert total == recipe.model.parameters
