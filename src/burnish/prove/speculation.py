"""Claim: speculative decoding is slower where few guesses stand, faster where most do, and left off where it is slower."""

from __future__ import annotations

import statistics
import time

import torch

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.prove.claim import Verdict
from burnish.serve.engine import Engine, Limits, Request
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling
from burnish.serve.speculative.forced import ForcedDraft
from burnish.serve.speculative.speculator import Speculator
from burnish.speculation import break_even, expected_tokens

LENGTH, FEW, MOST, COST = 4, 0.2, 0.8, 0.1  # guesses a round, acceptances, steps that a guess takes
STEPS, TEXT, LOST, NEAR = 160, 600, 4 / 3, 0.15
PROMPT: tuple[int, ...] = (1, 2, 3)
CLOCK = time.process_time  # of this process alone: others on the machine take none of it
WAYS: dict[str, tuple[float, int | None]] = {"few": (FEW, LENGTH), "most": (MOST, LENGTH), "gated": (FEW, None)}


def runner() -> TorchRunner:
    """A random decoder whose step costs little more for a few rows more: its time goes to many small layers."""
    shape = ModelConfig(vocab=256, hidden=64, ffn=128, heads=4, kv_heads=2, layers=12, max_positions=1024, init_std=0.2)
    return TorchRunner(Decoder(shape, torch.Generator().manual_seed(0)).double().eval(), shape)


def spend(seconds: float) -> None:
    """Be busy for so long, as a draft would be."""
    until = CLOCK() + seconds
    while CLOCK() < until:
        pass


class Writer:
    """An engine that writes one text, with its seconds and tokens; `draft` guesses `fixed` tokens always, or as the gate says."""

    def __init__(self, model: TorchRunner, draft: ForcedDraft | None = None, fixed: int | None = None) -> None:
        self.engine = Engine(model, Limits(pages=64, rows=1))
        if draft is not None:
            self.engine.speculator = Speculator(draft, self.engine._forward, 1, fixed, CLOCK)
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        options = Sampling(max_new_tokens=TEXT)
        self.engine.submit(Request(PROMPT, options), lambda output: self.tokens.extend(output.ids))
        self.engine.step()  # reads the prompt

    def step(self) -> None:
        """One step, timed."""
        began = CLOCK()
        self.engine.step()
        self.seconds.append(CLOCK() - began)

    @property
    def speculator(self) -> Speculator:
        """What asks its draft."""
        assert self.engine.speculator is not None
        return self.engine.speculator


def written(model: TorchRunner) -> tuple[list[int], dict[str, Writer]]:
    """The text, and each way of writing it: a step of each in turn, so that what disturbs one disturbs all."""
    whole = Writer(model)
    while whole.engine.busy:
        whole.step()
    step, texts = statistics.median(whole.seconds), {PROMPT: whole.tokens}
    writers = {"plain": Writer(model)} | {
        name: Writer(model, ForcedDraft(texts, acceptance, COST * step, spend), fixed)
        for name, (acceptance, fixed) in WAYS.items()
    }
    for _ in range(STEPS):
        for writer in writers.values():
            writer.step()
    return whole.tokens, writers


def measure() -> Verdict:
    """Both acceptances with as many guesses always, and the smaller one with the gate, against writing without."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        text, writers = written(runner())
    finally:
        torch.set_num_threads(threads)
    rates = {name: (len(writer.tokens) - 1) / sum(writer.seconds) for name, writer in writers.items()}
    times = {name: rates[name] / rates["plain"] for name in WAYS}
    wanted = {name: expected_tokens(WAYS[name][0], LENGTH) for name in ("few", "most")}
    counts = {name: writers[name].speculator.counts for name in wanted}
    found = {name: own.written / own.rounds for name, own in counts.items()}
    same = all(writer.tokens == text[: len(writer.tokens)] for writer in writers.values())
    near = all(abs(found[name] / wanted[name] - 1) <= NEAR for name in wanted)
    cost = statistics.median(writers["few"].seconds) / statistics.median(writers["plain"].seconds)
    gain = {name: wanted[name] / cost for name in wanted}
    least = break_even(LENGTH, COST, cost - LENGTH * COST)
    said = writers["gated"].speculator.summary().split("; ")[-1]
    return Verdict(
        claim="speculation",
        statement="Drafted tokens pay when enough of them stand: below the acceptance at which a round costs what it gives, "
        "drafting and thrown-away verification make writing slower. Measured, it can be left off there.",
        varied=f"acceptance {FEW:.0%}, {MOST:.0%}; always {LENGTH} guesses a round, or as the gate says",
        held=f"a draft that costs {COST} of a step, {STEPS} steps, greedy, float64, one thread, seconds of the processor",
        expected=f"{wanted['few']:.2f} and {wanted['most']:.2f} tokens a round; {gain['few']:.2f}x and {gain['most']:.2f}x; "
        f"break-even at {'no acceptance' if least is None else f'{least:.0%}'}; gated over {1 / LOST:.2f}x; the same tokens",
        measured=f"{found['few']:.2f} and {found['most']:.2f} tokens a round; {times['few']:.2f}x and {times['most']:.2f}x; "
        f"tokens {'the same' if same else 'differ'}; gated {times['gated']:.2f}x, {said}",
        holds=times["few"] < 1 < times["most"] and times["gated"] > 1 / LOST and same and near,
        why="A round of k guesses gives (1 - a^(k+1)) / (1 - a) tokens and costs k drafts and a step of k + 1 rows. At a = 0.2 "
        "no more than 1.25 tokens come of it, whatever k is.",
        source="Leviathan et al. 2023, arXiv 2211.17192",
        code="src/burnish/serve/speculative/gate.py, src/burnish/speculation.py",
    )
