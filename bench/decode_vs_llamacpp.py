"""SmolLM2 on two threads, one request: the engine beside llama.cpp in four formats and transformers in float32.

Needs llama-cpp-python built for this machine. bench/results/decode_vs_llamacpp.json.
"""

from __future__ import annotations

import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.config import ModelConfig
from burnish.data.text import Texts
from burnish.export.gguf import save_gguf
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import tokenizer_of
from burnish.load.wheels import fetched
from burnish.serve.engine import Engine, Limits, Request
from burnish.serve.forward import Forward
from burnish.serve.opening import Settings, make_runner
from burnish.serve.pages import Pages
from burnish.serve.sampling import Sampling
from burnish.serve.schedule import Piece, Schedule, Sequence
from record import record

THREADS, PROMPT, NEW, ROUNDS, PAGE = 2, 512, 64, 5, 16
ROW, TOKENS = 512, 4096  # of the text whose perplexity is taken, as rows read from their own beginning
K_MEANS = 15  # llama.cpp's number of Q4_K_M


class Ours:
    """The engine with matrices in 4-bit blocks."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        settings = Settings(2**30, tokens=PROMPT, weights="q4", runner="onnxruntime", threads=THREADS)
        self.runner = make_runner(model, config, settings)
        self.engine = Engine(self.runner, Limits(256, PAGE, 4, PROMPT))

    def speeds(self, prompt: list[int]) -> tuple[float, float]:
        """Prompt and new tokens a second."""
        times: list[float] = []
        # a first token of its own: nothing of the prompt is found in the pool
        request = Request((int(time.time_ns() % 4096), *prompt[1:]), Sampling(max_new_tokens=NEW + 1))
        began = time.perf_counter()
        self.engine.submit(request, lambda output: times.append(time.perf_counter()))
        while self.engine.busy:
            self.engine.step()
        return len(prompt) / (times[0] - began), NEW / (times[-1] - times[0])

    @torch.inference_mode()
    def log_likelihood(self, row: list[int]) -> float:
        """Of all tokens of a row but the first, in nats: they are given as guesses, all of which are scored."""
        pages = Pages(-(-len(row) // PAGE), PAGE)
        sequence = Sequence(row[:1], 1, len(row))
        Schedule(pages, 1, len(row)).reserve(sequence, len(row))
        piece = Piece(sequence, 0, len(row), tuple(row[1:]))
        return gained(Forward(self.runner, pages)([piece]), row)


class LlamaCpp:
    """llama.cpp with one file."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self.native = llama_cpp
        options: dict[str, Any] = {
            "n_threads": THREADS,
            "n_threads_batch": THREADS,
            "n_batch": PROMPT,
            "verbose": False,
        }
        self.model = llama_cpp.Llama(str(path), n_ctx=2 * PROMPT, **options)
        self.judge = llama_cpp.Llama(str(path), n_ctx=ROW, logits_all=True, **options)

    def speeds(self, prompt: list[int]) -> tuple[float, float]:
        context, count = self.model._ctx.ctx, self.model.n_vocab()
        self.native.llama_memory_clear(self.native.llama_get_memory(context), True)
        began = time.perf_counter()
        self._decode(prompt)
        token = self._likeliest(count)
        first = time.perf_counter()
        for _ in range(NEW):
            self._decode([token])
            token = self._likeliest(count)
        return len(prompt) / (first - began), NEW / (time.perf_counter() - first)

    def _decode(self, tokens: list[int]) -> None:
        array = (self.native.llama_token * len(tokens))(*tokens)
        assert self.native.llama_decode(self.model._ctx.ctx, self.native.llama_batch_get_one(array, len(tokens))) == 0

    def _likeliest(self, count: int) -> int:
        logits = self.native.llama_get_logits_ith(self.model._ctx.ctx, -1)
        return int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (count,)).argmax())

    def log_likelihood(self, row: list[int]) -> float:
        self.judge.reset()
        self.judge.eval(row)
        return gained(torch.from_numpy(np.array(self.judge.scores[: len(row)])), row)


class Transformers:
    """transformers in float32, on as many threads of torch as the others have of their own."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def speeds(self, prompt: list[int]) -> tuple[float, float]:
        torch.set_num_threads(THREADS)
        try:
            return self._speeds(prompt)
        finally:
            torch.set_num_threads(1)  # what our own runner keeps to

    def _speeds(self, prompt: list[int]) -> tuple[float, float]:
        began = time.perf_counter()
        made = self.model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
        token = made.logits[:, -1:].argmax(-1)
        first = time.perf_counter()
        for _ in range(NEW):
            made = self.model(token, past_key_values=made.past_key_values, use_cache=True)
            token = made.logits[:, -1:].argmax(-1)
        return len(prompt) / (first - began), NEW / (time.perf_counter() - first)

    @torch.inference_mode()
    def log_likelihood(self, row: list[int]) -> float:
        return gained(self.model(torch.tensor([row])).logits[0], row)


def gained(scores_SV: torch.Tensor, row: list[int]) -> float:
    """Sum of the log probabilities of a row's tokens after its first."""
    logs = scores_SV[:-1].double().log_softmax(-1)
    return float(logs.gather(1, torch.tensor(row[1:])[:, None]).sum())


def files(folder: Path) -> dict[str, Path]:
    """The four formats; Q4_1 is the file that the model came in."""
    import llama_cpp

    found = {"Q4_1": Path(fetched("smollm2"))}
    for form in ("Q8_0", "Q4_0", "F16"):
        found[form] = folder / f"{form}.gguf"
        save_gguf(open_model("smollm2"), found[form], form)
    found["Q4_K_M"] = folder / "Q4_K_M.gguf"
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.nthread = K_MEANS, THREADS
    whole = found.pop("F16")
    assert llama_cpp.llama_model_quantize(str(whole).encode(), str(found["Q4_K_M"]).encode(), settings) == 0
    return found


def main() -> None:
    torch.set_num_threads(THREADS)
    checkpoint = open_model("smollm2")
    model, config = load_model(checkpoint, dtype=torch.float32)
    text = "".join(document for document in Texts.open(["asset:austen/persuasion"]).documents())
    ids = tokenizer_of(checkpoint, config).encode(text[:60_000])
    prompt, rows = ids[:PROMPT], [ids[k : k + ROW] for k in range(0, TOKENS, ROW)]
    with tempfile.TemporaryDirectory() as scratch:
        from burnish.export.safetensors import save_folder

        folder = Path(scratch)
        save_folder(model, config, folder / "float")
        runs: dict[str, Any] = {"ours": Ours(model, config), "transformers": Transformers(folder / "float")}
        runs |= {form: LlamaCpp(path) for form, path in files(folder).items()}
        values = measured(runs, prompt, rows)
    print(record("decode_vs_llamacpp", values), values)


def measured(runs: dict[str, Any], prompt: list[int], rows: list[list[int]]) -> dict[str, float]:
    """Medians of alternating rounds, perplexities, and the ratios that the bars are about."""
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(ROUNDS + 1):
        for name, run in runs.items():
            speeds[name].append(run.speeds(prompt))
    values: dict[str, float] = {}
    for name, run in runs.items():
        prefill, decode = (statistics.median(column) for column in zip(*speeds[name][1:], strict=True))
        total = sum(run.log_likelihood(row) for row in rows)
        perplexity = float(np.exp(-total / sum(len(row) - 1 for row in rows)))
        values |= {f"{name}.prefill": prefill, f"{name}.decode": decode, f"{name}.perplexity": perplexity}
    llama = [name for name in runs if name.startswith("Q")]
    best: Callable[[str], str] = lambda what: max(llama, key=lambda name: values[f"{name}.{what}"])  # noqa: E731
    for what in ("decode", "prefill"):
        values[f"{what}.ratio"] = values[f"ours.{what}"] / values[f"{best(what)}.{what}"]
    values["decode.transformers"] = values["ours.decode"] / values["transformers.decode"]
    values["perplexity.above"] = values["ours.perplexity"] - values[f"{best('decode')}.perplexity"]
    return values


if __name__ == "__main__":
    main()
