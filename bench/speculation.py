"""What is written with a draft beside what is written without: bench/results/speculation.json.

Without sampling: 200 prompts of unequal lengths, each kind of draft, one and eight at once, in exact mode; a random decoder of four
layers in float32. With sampling: pairs of tokens against the target's own probabilities of them, three temperatures by top-k and
top-p, and how often as many draws of the target itself stray farther; a random decoder of eleven words in float64.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine, Limits, Request
from burnish.serve.pages import Pages
from burnish.serve.runners.exact import Exact
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling, probabilities
from burnish.serve.speculative.draft import Draft
from burnish.serve.speculative.model_draft import ModelDraft
from burnish.serve.speculative.ngram import NgramDraft
from burnish.serve.speculative.skipped import skipped
from record import record

VOCAB, PROMPTS, LONGEST, NEW, GUESSES = 48, 200, 60, 32, 4
KINDS, AT_ONCE = ("model", "ngram", "skip"), (1, 8)
WORDS, DRAWS, OWN_DRAWS = 11, 10_000, 1000
SAMPLINGS = [
    Sampling(max_new_tokens=3, temperature=temperature, **kept)  # type: ignore[arg-type]
    for temperature in (0.6, 1.0, 1.4)
    for kept in ({}, {"top_k": 5}, {"top_p": 0.8})
]


def decoder(seed: int, **sizes: int | float) -> tuple[Decoder, ModelConfig]:
    """One with random weights."""
    config = ModelConfig.model_validate({"ffn": 96, "heads": 4, "kv_heads": 2, "max_positions": 128} | sizes)
    return Decoder(config, torch.Generator().manual_seed(seed)).eval(), config


def target() -> tuple[Decoder, ModelConfig]:
    return decoder(0, vocab=VOCAB, hidden=64, layers=4, init_std=0.2)


def draft_of(kind: str, model: Decoder, config: ModelConfig) -> Draft:
    """One of each kind; what is left of a skipped model guesses rightly now and then, a small random one hardly ever."""
    if kind == "ngram":
        return NgramDraft()
    own, shape = (
        skipped(model, config, 1)
        if kind == "skip"
        else decoder(1, vocab=VOCAB, hidden=32, ffn=48, layers=1, init_std=0.2)
    )
    return ModelDraft(kind, TorchRunner(own, shape), Pages(400, 16), VOCAB, VOCAB)


def written(engine: Engine, asked: list[Request]) -> list[list[int]]:
    """The new tokens of each request."""
    found: list[list[int]] = [[] for _ in asked]
    for own, request in zip(found, asked, strict=True):
        engine.submit(request, lambda output, own=own: own.extend(output.ids))  # type: ignore[misc]
    while engine.busy:
        engine.step()
    return found


def greedy() -> dict[str, float]:
    """By kind of draft: requests with other tokens than without, and the guesses that stood."""
    draw = np.random.default_rng(0)
    asked = [
        Request(tuple(draw.integers(VOCAB, size=draw.integers(1, LONGEST)).tolist()), Sampling(max_new_tokens=NEW))
        for _ in range(PROMPTS)
    ]
    values: dict[str, float] = {"greedy.requests": 0, "greedy.different": 0}
    for rows in AT_ONCE:
        limits = Limits(pages=400, page=16, rows=rows, tokens=128)
        wanted = written(Engine(Exact(TorchRunner(*target())), limits), asked)
        for kind in KINDS:
            engine = Engine(Exact(TorchRunner(*target())), limits)
            speculator = engine.speculate(draft_of(kind, *target()), GUESSES)
            found = written(engine, asked)
            different = sum(one != other for one, other in zip(found, wanted, strict=True))
            values["greedy.requests"] += len(asked)
            values["greedy.different"] += different
            values[f"greedy.{kind}.{rows}.different"] = different
            values[f"greedy.{kind}.{rows}.drafted"] = speculator.counts.drafted
            values[f"greedy.{kind}.{rows}.stood"] = speculator.counts.stood
    return values


@torch.no_grad()
def pairs_of(model: Decoder, prompt: tuple[int, ...], options: Sampling) -> np.ndarray:
    """The target's probabilities of the second and third token after a prompt, [WORDS, WORDS]."""

    def following(*tokens: int) -> np.ndarray:
        return probabilities(model.logits(model(torch.tensor([[*prompt, *tokens]])))[0, -1], options).numpy()

    first, pairs = following(), np.zeros((WORDS, WORDS))
    for one in range(WORDS):
        for two, share in enumerate(first[one] * following(one)):
            pairs[two] += share * following(one, two)
    return pairs


def sampled() -> dict[str, float]:
    """Settings in which total variation is beyond what nearly all runs of as many draws of the target itself have."""
    sizes = {"vocab": WORDS, "hidden": 16, "ffn": 16, "layers": 2, "heads": 2, "kv_heads": 1, "max_positions": 16}
    (model, config), (other, _) = (decoder(seed, **sizes, init_std=0.7) for seed in (0, 3))
    model, other, prompt = model.double(), other.double(), (3, 1)
    values: dict[str, float] = {"sampled.settings": len(SAMPLINGS), "sampled.beyond": 0, "sampled.most": 0}
    for options in SAMPLINGS:
        engine = Engine(TorchRunner(model, config), Limits(pages=200, page=4, rows=64, tokens=400, queue=DRAWS))
        engine.speculate(ModelDraft("other", TorchRunner(other, config), Pages(200, 4), WORDS, WORDS), 2)
        found = np.zeros((WORDS, WORDS))
        for tokens in written(engine, [Request(prompt, replace(options, seed=seed)) for seed in range(DRAWS)]):
            found[tokens[1], tokens[2]] += 1 / DRAWS
        pairs = pairs_of(model, prompt, options)
        own = np.random.default_rng(0).multinomial(DRAWS, pairs.ravel() / pairs.sum(), size=OWN_DRAWS) / DRAWS
        noise = abs(own - pairs.ravel()).sum(1) / 2
        variation = float(abs(found - pairs).sum() / 2)
        values["sampled.beyond"] += bool(variation > np.quantile(noise, 0.999))
        values["sampled.most"] = max(values["sampled.most"], variation / float(noise.mean()))
    return values


def main() -> int:
    """Measure, record, print."""
    torch.set_num_threads(1)
    values = greedy() | sampled()
    print(record("speculation", values), values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
