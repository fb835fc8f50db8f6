"""Networks of transformers divided by a table of their names: losses, gradients and an update as in one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ranks
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.techniques import tensor
from burnish.train.step import Trainable, plain_trainable

SIZES = {"vocab_size": 101, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64}
KINDS = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 8, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 5},
}


class Loss(nn.Module):
    """Their network under the call that a step makes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(ids).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def make(kind: str) -> Trainable:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | KINDS[kind]))
    loss = Loss(model.float())
    return plain_trainable(loss, torch.optim.AdamW(loss.parameters(), lr=1e-3), 0.0)


def trained(kind: str, tp: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of three steps, on one of `tp` ranks."""
    trainable = make(kind)
    if tp > 1:
        tensor.apply(tensor.Config(sequence=False), trainable, Mesh(tp=tp))
    draw, found = torch.Generator().manual_seed(3), []
    for _ in range(3):
        ids, labels = torch.randint(101, (2, 3, 12), generator=draw)
        total = trainable.parts[0](ids, labels)
        total.backward()
        trainable.ranks.reduced()
        own = [p.grad for p in trainable.parts[0].parameters() if trainable.ranks.counts(p)]
        norm = torch.stack([grad.norm() for grad in own]).norm().item()
        found.append((total.item(), trainable.ranks.share(total.item(), 1, 1, norm)[3]))
        trainable.optimizer.step()
        trainable.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_norms_equal_one_process(kind: str) -> None:
    expected = trained(kind, 1)
    for found in ranks.run(2, trained, kind, 2):
        for mine, theirs in zip(found, expected, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5)


def refused(sequence: bool) -> str:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    loss = make("llama").parts[0] if sequence else Loss(GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)))
    try:
        tensor.apply(
            tensor.Config(sequence=sequence),
            plain_trainable(loss, torch.optim.AdamW(loss.parameters()), 0.0),
            Mesh(tp=2),
        )
    except UserError as error:
        return str(error)
    return "accepted"


def test_a_network_without_a_table_is_refused_by_name() -> None:
    for said in ranks.run(2, refused, False):
        assert "GPTNeoXForCausalLM" in said
        assert "LlamaForCausalLM" in said


def test_divided_tokens_are_refused_where_the_network_counts_them() -> None:
    for said in ranks.run(2, refused, True):
        assert said.startswith("parallel.sequence: a LlamaForCausalLM counts its positions")
