"""Memory of a step at its fullest: numbers worked out by hand, and the live tensors of real steps beside them."""

from unittest import mock

import numpy as np
import pytest
import torch

from burnish import apply, decoder_parts, describe, simulate
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes
from burnish.measure_live import LiveBytes
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops import cross_entropy
from burnish.recipe import replace
from burnish.recipe_files import load
from burnish.techniques import checkpointing, precision
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import plain_trainable

# 600 tokens: more than a chunk of 512.
ROWS, SEQ = 2, 300
SMALL = {"hidden": 8, "ffn": 16, "heads": 2, "kv_heads": 1, "head_dim": 4, "layers": 3, "max_positions": SEQ}


def step_bytes(vocab: int, micro: int | np.ndarray, compute: str = "fp32", mode: str = "none") -> dict:
    model = ModelConfig(**SMALL, vocab=vocab, tied=False)
    work = describe.describe(model, Shapes(rows=ROWS, seq=SEQ, micro=micro))
    work = precision.predict(precision.Config(compute=compute), work, Mesh())
    return simulate.step_bytes(checkpointing.predict(checkpointing.Config(mode=mode), work, Mesh()))


def test_all_kinds_by_hand():
    """17,784 parameters in 30 tensors. A layer saves 104 elements and 4 statistics a token."""
    layers = 3 * 600 * (104 + 4) * 4
    outside = 600 * 8 + 300 * 4 * 4 + 600 * (8 + 1) * 4 + 600 * 8 * 4 + 8000 * 4
    assert step_bytes(1000, 2) == {
        "parameters": 71_136,
        "gradients": 71_136,
        "optimizer": 2 * 71_136 + 30 * 4,
        "saved": layers + outside,
        "passing": 512 * 1000 * 4,
    }


@pytest.mark.parametrize(
    ("vocab", "compute", "mode", "expected"),
    [
        (1000, "fp32", "full", 512 * 1000 * 4),
        # Logits in float32, their bf16 copy, and the head's gradient summed in float32.
        (1000, "bf16", "none", 512 * 1000 * 6 + 1000 * 8 * 4),
        # Few words: backward is fuller. The largest tensor of a layer is gate and up, 2 x 16 elements a token.
        (10, "fp32", "none", 600 * 32 * 4),
        (10, "bf16", "none", 600 * 32 * 2),
        # A layer comes back, but for its input; selective also keeps the attention's output and log-sum-exp.
        (10, "fp32", "full", 600 * (104 - 8 + 4) * 4 + 600 * 32 * 4),
        (10, "bf16", "full", 600 * ((104 - 8) * 2 + 4 * 4) + 600 * 32 * 2),
        (10, "fp32", "selective", 600 * (104 - 8 - 8 + 4 - 2) * 4 + 600 * 32 * 4),
    ],
)
def test_what_comes_and_goes_by_hand(vocab, compute, mode, expected):
    assert step_bytes(vocab, 2, compute, mode)["passing"] == expected


def test_with_one_micro_batch_there_are_no_gradients_yet_when_logits_are_made():
    assert step_bytes(1000, 1)["passing"] == 512 * 1000 * 4 - 71_136
    assert step_bytes(1000, np.array([1, 2]))["passing"].tolist() == [512 * 1000 * 4 - 71_136, 512 * 1000 * 4]


def test_a_chunk_is_that_of_the_loss():
    assert decoder_parts.CHUNK == cross_entropy.CHUNK


MODELS = {
    "few words": ({"vocab": 160, "hidden": 64, "ffn": 176, "heads": 4, "kv_heads": 2, "layers": 5, "head_dim": 16}, 3),
    "many words": ({"vocab": 4003, "hidden": 32, "ffn": 80, "heads": 4, "kv_heads": 2, "layers": 2, "head_dim": 8}, 5),
}


def check_peak(size: str, compute: str, mode: str, micro: int) -> None:
    """The named check: the most bytes alive in a step are at most 3 % above the prediction, and not far below."""
    sizes, rows = MODELS[size]
    model = ModelConfig(**sizes, tied=size == "many words", max_positions=128)
    settings = {"precision": compute, "memory.checkpointing": mode, "data.seq": 128}
    recipe = replace(load("quickstart").model_copy(update={"model": model}), settings)
    before = LiveBytes()
    with before:
        loss = LanguageModelLoss(Decoder(model, torch.Generator().manual_seed(0)))
        trainable = apply.apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), clip=1.0))
    draw, positions = np.random.default_rng(0), np.tile(np.arange(128), (rows, 1))
    batches = [Batch(*draw.integers(0, model.vocab, (2, rows, 128)), positions, None) for _ in range(micro)]
    trainable.step(batches, 1e-3)
    with LiveBytes() as live:
        trainable.step(batches, 1e-3)
    work, _ = apply.predict(recipe, describe.describe(model, Shapes(rows=rows, seq=128, micro=micro)))
    assert 0.8 < (live.peak - before.start) / sum(simulate.step_bytes(work).values()) < 1.03


@pytest.mark.parametrize("size", MODELS)
@pytest.mark.parametrize(("compute", "micro"), [("fp32", 1), ("fp32", 2), ("bf16", 2)])
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_predicted_peak_is_that_of_live_tensors(size, compute, mode, micro):
    check_peak(size, compute, mode, micro)


@pytest.mark.sabotage
@pytest.mark.parametrize(("forgotten", "size"), [("transient_bytes", "many words"), ("backward_bytes", "few words")])
def test_what_comes_and_goes_left_out_of_the_plan_is_noticed(forgotten, size):
    check_peak(size, "fp32", "full", 2)
    with mock.patch.object(simulate, forgotten, return_value=0), pytest.raises(AssertionError):
        check_peak(size, "fp32", "full", 2)
