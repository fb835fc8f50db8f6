"""A trained model pruned and trained on from its folder: importance that reads text finds what matters less, training on
makes good most of what was lost, and the bench's small size runs from start to end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from burnish.compress import prune_model
from burnish.compress.sample_files import read_samples
from burnish.compress.samples import Samples
from burnish.data.packing import Corpus, Rows
from burnish.data.sampler import eval_batches
from burnish.data.text import Texts
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.export.safetensors import save_folder
from burnish.load.folder import open_folder
from burnish.load.model import load_folder
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.recipe import replace
from burnish.recipe_files import load
from burnish.records import Records, read
from burnish.run import run
from burnish.techniques import prune
from burnish.train.evaluate import evaluate
from burnish.train.loss import LanguageModelLoss

ROOT = Path(__file__).parents[2]
TRAINED = ROOT / "tests" / "fixtures" / "quickstart"


@pytest.fixture(scope="module")
def model() -> Decoder:
    return load_folder(TRAINED, dtype=torch.float32)[0]


@pytest.fixture(scope="module")
def samples() -> Samples:
    return read_samples(open_folder(TRAINED), ["asset:austen/emma"], 8, 256)[0]


@pytest.fixture(scope="module")
def batches(model: Decoder) -> list:
    """Of the novel that was not learned."""
    tokenizer = Tokenizer.load(TRAINED, model.shape.eos)
    text = next(Texts.open(["asset:austen/persuasion"]).documents())[:16_000]
    corpus = Corpus.of([tokenizer.encode(text)], tokenizer.eos, [len(text.encode())])
    return list(eval_batches(Rows(corpus, 256), 8))


def loss_after(model: Decoder, samples: Samples, batches: list, kind: str, **shares: float) -> float:
    asked = prune.Config(importance=kind, **shares)
    small = prune.apply(asked, model, Mesh(), prune.search(asked, model, samples))
    return evaluate(LanguageModelLoss(small), batches).loss


def at_random(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)

    def drawn(values: torch.Tensor, count: int) -> tuple[int, ...]:
        return tuple(sorted(torch.randperm(len(values), generator=draw)[:count].tolist()))

    monkeypatch.setattr(prune_model, "largest", drawn)


SHARES = {"channels": 0.3, "groups": 0.5}


@pytest.fixture(scope="module")
def drawn(model: Decoder, samples: Samples, batches: list) -> float:
    """What parts drawn at random cost, the mean of three draws, in nats."""
    found = []
    for seed in range(3):
        with pytest.MonkeyPatch.context() as patch:
            at_random(patch, seed)
            found.append(loss_after(model, samples, batches, "norm", **SHARES))
    return sum(found) / 3 - evaluate(LanguageModelLoss(model), batches).loss


def ranks_well(kind: str, model: Decoder, samples: Samples, batches: list, drawn: float) -> bool:
    """Whether what is chosen costs less than two thirds of what is drawn."""
    whole = evaluate(LanguageModelLoss(model), batches).loss
    return loss_after(model, samples, batches, kind, **SHARES) - whole < 2 / 3 * drawn


@pytest.mark.parametrize("kind", ["activation", "first-order"])
def test_what_is_chosen_costs_less_than_what_is_drawn(kind, model, samples, batches, drawn):
    assert ranks_well(kind, model, samples, batches, drawn)


def test_a_pruned_model_trains_on_from_its_folder(model, samples, batches, tmp_path):
    asked = prune.Config(**SHARES)
    small = prune.apply(asked, model, Mesh(), prune.search(asked, model, samples))
    save_folder(small, small.shape, tmp_path / "small", tokenizer=TRAINED)
    changes = {
        "model": small.shape.model_dump(),
        "train.init": str(tmp_path / "small"),
        "data.train": ["asset:austen/emma"],
        "data.heldout": [],
        "data.heldout_fraction": 0.01,
        "data.seq": 128,
        "optim.lr": 5e-4,
        "schedule.warmup_steps": 5,
        "train.steps": 40,
        "train.eval_every": 0,
        "export.prompts": [],
        "machine.threads": 1,
    }
    recipe = replace(load("quickstart"), changes)
    run(recipe, folder=tmp_path / "run", quiet=True)
    assert read(Records, tmp_path / "run" / "records.json").checks["weights_equal"] is True
    again, config = load_folder(tmp_path / "run" / "model")
    assert config == small.shape
    losses = [evaluate(LanguageModelLoss(one), batches).loss for one in (model, small, again)]
    assert losses[0] < losses[2] < losses[1] - 0.1 * (losses[1] - losses[0])
    with pytest.raises(UserError, match="another shape than the recipe's model"):
        run(replace(recipe, {"model.ffn": 352}), folder=tmp_path / "other", quiet=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_bench_at_a_quarter_of_its_size(tmp_path):
    sys.path.insert(0, str(ROOT / "bench"))
    import prune as bench

    found = bench.measure(bench.SMALL, tmp_path / "small")
    assert found["parameters_off"] == found["file_bytes_off"] == 0
    assert found["file_share"] < 0.8
    assert found["flops_share"] < 0.8
    assert found["above_control_percent"] < 3
    assert found["pruned_loss"] < found["first-order_loss"]
    assert found["transformers_difference"] < 1e-4


@pytest.mark.sabotage
def test_keeping_the_least_important_is_noticed(model, samples, batches, drawn, monkeypatch):
    assert ranks_well("activation", model, samples, batches, drawn)
    largest = prune_model.largest
    monkeypatch.setattr(prune_model, "largest", lambda values, count: largest(-values, count))
    assert not ranks_well("activation", model, samples, batches, drawn)
