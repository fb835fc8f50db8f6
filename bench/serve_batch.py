"""SmolLM2 on two threads, 32 requests of mixed lengths at once: the engine beside llama.cpp's own parallel decoding, which its
server's slots are made of, and transformers' padded batch in float32. Each request ends by its own length, none by a token.
The engine also with keys and values of 8 bits (kv8), and of a compressed model with a vocabulary's matrix of 4 bits too (awq),
whose perplexity is between those of llama.cpp's formats (bench/decode_vs_llamacpp.py); the fastest is compared with its fastest.

Needs llama-cpp-python built for this machine. bench/results/serve_batch.json.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.config import ModelConfig
from burnish.data.text import Texts
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import tokenizer_of
from burnish.serve.engine import Request
from burnish.serve.opening import Settings, make_engine
from burnish.serve.sampling import Sampling
from decode_vs_llamacpp import OURS, files, searched
from llama_parallel import Parallel
from record import record

THREADS, REQUESTS, ROUNDS = 2, 32, 3
PROMPTS, NEW = (16, 384), (16, 128)  # shortest and longest
FORMATS = ("Q4_0", "Q8_0")  # those it has its fastest products for; Q4_1 was slower
SETTINGS = Settings(2**30, rows=REQUESTS, tokens=256, weights="q4", runner="onnxruntime", threads=THREADS)
Asked = list[tuple[list[int], int]]  # prompts, and how many tokens are to follow each


def requests(ids: list[int]) -> Asked:
    """Stretches of a text, one after another, each with a length to go on for."""
    draw, found, start = np.random.default_rng(0), [], 0
    for _ in range(REQUESTS):
        length, new = int(draw.integers(*PROMPTS)), int(draw.integers(*NEW))
        found.append((ids[start : start + length], new))
        start += length
    return found


class Ours:
    """The engine with matrices in 4-bit blocks."""

    def __init__(self, model: Any, config: ModelConfig, **chosen: Any) -> None:
        self.engine, _ = make_engine(model, config, replace(SETTINGS, **chosen))

    def run(self, asked: Asked) -> list[list[int]]:
        self.engine.pages.forget()
        found: list[list[int]] = [[] for _ in asked]
        for own, (prompt, new) in zip(found, asked, strict=True):
            request = Request(tuple(prompt), Sampling(max_new_tokens=new))
            self.engine.submit(request, lambda output, own=own: own.extend(output.ids))  # type: ignore[misc]
        while self.engine.busy:
            self.engine.step()
        return found


class Transformers:
    """transformers in float32: prompts filled up to the longest, all rows as long as the one with most new tokens."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(self, asked: Asked) -> list[list[int]]:
        longest = max(len(prompt) for prompt, _ in asked)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in asked])
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in asked])
        most = max(new for _, new in asked)
        torch.set_num_threads(THREADS)
        try:
            made = self.model.generate(
                ids, attention_mask=seen, max_new_tokens=most, min_new_tokens=most, do_sample=False, pad_token_id=0
            )
        finally:
            torch.set_num_threads(1)  # what our own runner keeps to
        return [row[longest : longest + new].tolist() for row, (_, new) in zip(made, asked, strict=True)]


def main() -> None:
    checkpoint = open_model("smollm2")
    model, config = load_model(checkpoint, dtype=torch.float32)
    text = "".join(Texts.open(["asset:austen/persuasion"]).documents())
    asked = requests(tokenizer_of(checkpoint, config).encode(text[:60_000]))
    with tempfile.TemporaryDirectory() as scratch:
        from burnish.export.safetensors import save_folder

        folder = Path(scratch)
        save_folder(model, config, folder / "float")
        runs: dict[str, Any] = {"ours": Ours(model, config), "kv8": Ours(model, config, kv="int8")}
        runs["awq"] = Ours(*searched(), kv="int8", head="int4")
        runs["transformers"] = Transformers(folder / "float")
        room = PROMPTS[1] + NEW[1]
        written = files(folder)
        runs |= {form: Parallel(written[form], THREADS, REQUESTS, room) for form in FORMATS}
        values = measured(runs, asked)
    exact = Ours(model, config, exact=True)
    together = exact.run(asked)
    alone = [exact.run([one])[0] for one in asked]
    values["exact.equal"] = sum(a == b for a, b in zip(alone, together, strict=True)) / REQUESTS
    print(record("serve_batch", values), values)


def measured(runs: dict[str, Any], asked: Asked) -> dict[str, float]:
    """New tokens a second, medians of alternating rounds, and the ratios that the bars are about."""
    new = sum(count for _, count in asked)
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            began = time.perf_counter()
            found = run.run(asked)
            speeds[name].append(new / (time.perf_counter() - began))
            assert [len(one) for one in found] == [count for _, count in asked], name
    values = {f"{name}.tokens": statistics.median(rates) for name, rates in speeds.items()}
    best = max(values[f"{form}.tokens"] for form in FORMATS)
    values["transformers.ratio"] = values["ours.tokens"] / values["transformers.tokens"]
    values["kv8.ratio"] = values["kv8.tokens"] / values["ours.tokens"]
    return values | {"llamacpp.ratio": max(values[f"{name}.tokens"] for name in OURS) / best}


if __name__ == "__main__":
    main()
