"""16-bit training against float32 and against torch's autocast; masters through a checkpoint."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnish import runnable
from burnish.apply import apply
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.models.attention import check_attention
from burnish.models.decoder import Decoder
from burnish.ops.master_weights import LossScale, MasterWeights
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import begun, build_optimizer, fill_state
from burnish.train.state import State, load_checkpoint, save_checkpoint
from burnish.train.step import StepResult, Trainable, plain_trainable

MODEL = ModelConfig(
    vocab=320, hidden=64, ffn=160, heads=4, kv_heads=2, layers=3, head_dim=16, tied=True, max_positions=64
)


class Autocast(LanguageModelLoss):
    """Float32 weights under torch's own mixed precision, with its own cross entropy."""

    def forward(
        self, ids_BS: Tensor, labels_BS: Tensor, positions_BS: object = None, segments: object = None
    ) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits_BSV = self.model.logits(self.model(ids_BS))
            return F.cross_entropy(logits_BSV.float().flatten(0, 1), labels_BS.flatten(), reduction="sum")


def make_recipe(compute: object = "fp32", tied: bool = True) -> Recipe:
    base = load("quickstart").model_copy(update={"model": MODEL.model_copy(update={"tied": tied})})
    return replace(base, {"precision": compute, "data.seq": 64})


def make_trainable(recipe: Recipe, seed: int = 1, kind: type[LanguageModelLoss] = LanguageModelLoss) -> Trainable:
    loss = kind(Decoder(recipe.model, torch.Generator().manual_seed(seed)))
    return apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip))


def make_batches(count: int = 2) -> list[Batch]:
    """Micro batches of unequal label counts."""
    draw, positions = np.random.default_rng(0), np.tile(np.arange(29), (3, 1))
    batches = []
    for number in range(count):
        ids, labels = draw.integers(0, MODEL.vocab, (2, 3, 29))
        labels[:, : 2 + 3 * number] = -100
        batches.append(Batch(ids, labels, positions, None))
    return batches


def curve(trainable: Trainable, steps: int = 20, lr: float = 1e-3) -> list[StepResult]:
    batches = make_batches()
    return [trainable.step(batches, lr) for _ in range(steps)]


def losses(trainable: Trainable) -> np.ndarray:
    return np.array([result.loss for result in curve(trainable)])


def masters(trainable: Trainable) -> MasterWeights:
    assert isinstance(trainable.optimizer, MasterWeights)
    return trainable.optimizer


def everything(trainable: Trainable) -> list[Tensor]:
    """Copies of the weights and of all that the optimizer keeps."""
    kept = [p.detach().clone() for p in trainable.parts[0].parameters()]
    states = trainable.optimizer.state.values()
    return kept + [v.clone() for state in states for v in state.values() if isinstance(v, Tensor)]


@cache
def reference(tied: bool, seed: int, kind: type[LanguageModelLoss] = LanguageModelLoss) -> tuple[StepResult, ...]:
    """Float32 weights, with or without autocast."""
    return tuple(curve(make_trainable(make_recipe(tied=tied), seed, kind)))


def check_parity(compute: str, tied: bool = True) -> None:
    """Over 20 steps and four seeds: at most twice autocast's error, losses within 0.1 %, first norms within 1 %."""
    ours, theirs = [], []
    for seed in range(4):
        exact, autocast = reference(tied, seed), reference(tied, seed, Autocast)
        lower = curve(make_trainable(make_recipe(compute, tied), seed))
        assert lower[0].grad_norm == pytest.approx(exact[0].grad_norm, rel=0.01)
        goal = np.array([result.loss for result in exact])
        ours.append(np.array([result.loss for result in lower]) - goal)
        theirs.append(np.array([result.loss for result in autocast]) - goal)
        assert np.abs(ours[-1]).max() < 1e-3 * goal[0]
    assert goal[-1] < goal[0] - 0.5
    assert np.sqrt(np.square(ours).mean()) <= 2 * np.sqrt(np.square(theirs).mean())


@pytest.mark.parametrize(("compute", "tied"), [("bf16", True), ("bf16", False), ("fp16", True)])
def test_the_loss_is_as_close_to_float32_as_autocasts(compute: str, tied: bool) -> None:
    check_parity(compute, tied)


def check_rounding(compute: str) -> None:
    """After three steps: matrices are their masters rounded, vectors their masters, a tied head is still tied."""
    trainable = make_trainable(make_recipe(compute))
    curve(trainable, 3)
    model = trainable.parts[0].model
    assert model.head.weight is model.embed.weight
    for parameter in model.parameters():
        master = trainable.optimizer.state[parameter]["master"]
        assert master.dtype == torch.float32
        assert parameter.dtype == (torch.float32 if parameter.dim() == 1 else masters(trainable).dtype)
        assert torch.equal(parameter, master.to(parameter.dtype))


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_parameters_are_their_masters_rounded_and_stay_tied(compute: str) -> None:
    check_rounding(compute)


def test_updates_too_small_for_bf16_add_up_in_the_masters() -> None:
    trainable = make_trainable(make_recipe("bf16"))
    weight = trainable.parts[0].model.layers[0].mlp.up.weight
    before = weight.detach().clone()
    start = masters(trainable)._whole[weight].clone()
    curve(trainable, 4, lr=1e-6)
    moved = trainable.optimizer.state[weight]["master"] - start
    assert moved.abs().median() == pytest.approx(4e-6, rel=0.5)
    assert (weight == before).float().mean() > 0.8
    curve(trainable, 40, lr=1e-4)
    assert (weight == before).float().mean() < 0.1


def test_micro_batches_add_up_in_float32() -> None:
    trainable = make_trainable(make_recipe("bf16"))
    seen: list[torch.dtype] = []
    trainable.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.extend(p.grad.dtype for g in optimizer.param_groups for p in g["params"])
    )
    curve(trainable, 1)
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(compute: str, tmp_path: Path) -> None:
    whole, first = make_trainable(make_recipe(compute)), make_trainable(make_recipe(compute))
    expected = losses(whole)[:6]
    curve(first, 3)
    path = save_checkpoint(tmp_path, first, State(3, 0), keep=1)
    resumed = make_trainable(make_recipe(compute), seed=9)
    load_checkpoint(path, resumed, {})
    assert [r.loss for r in curve(resumed, 3)] == expected[3:].tolist()


@pytest.mark.parametrize(("compute", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_attention_is_checked_in_the_format_of_products(
    compute: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    monkeypatch.setattr(runnable, "check_attention", lambda *given: checked.append((given, check_attention(*given))))
    runnable.make_loss(replace(make_recipe(compute), {"machine.threads": torch.get_num_threads()}), "cpu")
    assert {given for given, _ in checked} == {("cpu", torch.float32), ("cpu", dtype)}
    assert max(worst for _, worst in checked) > 1e-3  # rounding to 16 bits took place


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_states_filled_early_change_nothing(compute: str) -> None:
    """As the loop does before the first step; what comes out is the same bit for bit."""
    late, early = make_trainable(make_recipe(compute)), make_trainable(make_recipe(compute))
    fill_state(early.optimizer)
    assert not begun(early.optimizer)
    assert all(len(state) == 4 for state in early.optimizer.state.values())
    fill_state(early.optimizer)
    assert curve(late, 3) == curve(early, 3)
    assert begun(early.optimizer)
    assert all(torch.equal(a, b) for a, b in zip(everything(late), everything(early), strict=True))


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_whole_parameters_are_given_back_before_the_first_step(compute: str) -> None:
    plain, trainable = make_trainable(make_recipe()), make_trainable(make_recipe(compute))
    inner = masters(trainable).release()
    assert type(inner) is torch.optim.AdamW
    pairs = zip(plain.parts[0].parameters(), trainable.parts[0].parameters(), strict=True)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    stepped = make_trainable(make_recipe(compute))
    curve(stepped, 1)
    with pytest.raises(RuntimeError, match="before the first step"):
        masters(stepped).release()


@pytest.mark.sabotage
def test_weights_that_are_not_copied_back_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_parity("bf16")
    monkeypatch.setattr(MasterWeights, "_copy_back", lambda self, parameters: None)
    with pytest.raises(AssertionError):
        check_parity("bf16")


@pytest.mark.sabotage
def test_a_scale_that_is_not_divided_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_parity("fp16")
    monkeypatch.setattr(LossScale, "divide_out", lambda self, gradient: gradient)
    with pytest.raises(AssertionError):
        check_parity("fp16")


@pytest.mark.sabotage
def test_vectors_in_bf16_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = MasterWeights.__init__

    def all_cast(self: MasterWeights, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        for parameter in self._whole:
            parameter.data = parameter.data.to(self.dtype)

    monkeypatch.setattr(MasterWeights, "__init__", all_cast)
    with pytest.raises(AssertionError):
        check_rounding("bf16")
