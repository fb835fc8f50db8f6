"""SmolLM2's real weights: the same perplexity as transformers, which reads the same file with its own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.data.text import Texts
from burnish.evaluation.text import perplexity
from burnish.load.gguf import open_gguf
from burnish.load.model import load_model
from burnish.load.tokenizer import ends_of, tokenizer_of
from burnish.serve.generate import generate
from burnish.serve.sampling import Sampling

LENGTH, STRIDE = 512, 256
CLOSE = 1e-3


class AsOurs(nn.Module):
    """transformers' model under the two calls that scoring makes."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        self.theirs, self.shape, self.head = theirs, theirs.config, theirs.get_output_embeddings()

    def forward(self, ids: torch.Tensor, **_: object) -> torch.Tensor:
        return self.theirs.model(ids).last_hidden_state


def text_ids(tokens: int, tokenizer: object) -> list[int]:
    """The first tokens of a novel."""
    text = next(iter(Texts.open(["asset:austen/persuasion"]).documents()))
    return tokenizer.encode(text[: 8 * tokens])[:tokens]


def both(file: Path) -> tuple:
    """Our model with config and tokenizer, and theirs."""
    checkpoint = open_gguf(file)
    ours, config = load_model(checkpoint)
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    return ours, config, tokenizer_of(checkpoint, config), ends_of(checkpoint, config), theirs


def compared(file: Path, tokens: int) -> tuple[float, float]:
    """Perplexity of the same tokens, in the same windows, by both."""
    ours, _, tokenizer, _, theirs = both(file)
    ids = text_ids(tokens, tokenizer)
    return tuple(perplexity(model, ids, LENGTH, STRIDE, 2).perplexity for model in (ours, AsOurs(theirs)))


@pytest.mark.slow
def test_smollm2_has_the_perplexity_that_transformers_finds(smollm2):
    ours, theirs = compared(smollm2, 3001)
    assert 10 < ours < 40
    assert ours == pytest.approx(theirs, rel=CLOSE)


@pytest.mark.slow
@torch.no_grad()
def test_smollm2_answers_a_chat_as_in_transformers(smollm2):
    ours, _, tokenizer, ends, theirs = both(smollm2)
    their_tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    messages = [{"role": "user", "content": "Name three colours of the rainbow."}]
    text = their_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode_prompt(text)
    assert ids == their_tokenizer(text).input_ids
    found = generate(ours, [ids], Sampling(max_new_tokens=40, eos=ends))[0]
    wanted = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=40)[0, len(ids) :].tolist()
    assert found == [token for token in wanted if token not in ends]
