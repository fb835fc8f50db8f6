"""SmolLM2 on two threads, one request: the engine beside llama.cpp in four formats and transformers in float32.

The engine runs the file's own 4-bit blocks kept exactly (ours), these with keys and values of 8 bits (kv8), and what `burnish
compress --with awq` makes of them, written first (minutes) unless it is there, with a vocabulary's matrix of 4 bits too (awq).
A ratio is between the fastest of ours, of those that predict the text no worse, and a format of llama.cpp, the fastest of which
is also run with keys and values of 8 bits (kv). Needs llama-cpp-python built for this machine.
bench/results/decode_vs_llamacpp.json.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.compress.sample_files import read_samples
from burnish.config import ModelConfig
from burnish.data.text import Texts
from burnish.export.gguf import save_gguf
from burnish.load.model import load_folder, load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import tokenizer_of
from burnish.load.wheels import fetched
from burnish.serve.engine import Engine, Limits, Request
from burnish.serve.fitting import LONGEST, ROWS
from burnish.serve.forward import Forward
from burnish.serve.opening import Settings, make_runner
from burnish.serve.pages import Pages
from burnish.serve.sampling import Sampling
from burnish.serve.schedule import Piece, Schedule, Sequence
from record import record

THREADS, PROMPT, NEW, ROUNDS, PAGE = 2, 512, 64, 5, 16
ROW, TOKENS = 512, 4096  # of the text whose perplexity is taken, as rows read from their own beginning
K_MEANS = 15  # llama.cpp's number of Q4_K_M
ALIKE = 1.005  # perplexities this near are alike: inputs rounded to 8 bits make as much of a difference
OURS = ("ours", "kv8", "awq")
EIGHT = 8  # llama.cpp's number of Q8_0
CALIBRATED = "asset:austen/emma"  # another novel than the one that is judged by
AWQ = Path(__file__).parent / "scratch" / "awq" / "smollm2-64"


class Ours:
    """The engine with matrices in 4-bit blocks; what is fitted is fitted to `texts`, or to its own."""

    def __init__(self, model: Any, config: ModelConfig, texts: list[list[int]] | None = None, **chosen: Any) -> None:
        settings = Settings(2**30, tokens=PROMPT, weights="q4", runner="onnxruntime", threads=THREADS, **chosen)
        self.runner = make_runner(model, config, settings, texts)
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

    def __init__(self, path: Path, **more: Any) -> None:
        import llama_cpp

        self.native = llama_cpp
        options: dict[str, Any] = {
            "n_threads": THREADS,
            "n_threads_batch": THREADS,
            "n_batch": PROMPT,
            "verbose": False,
            **more,
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


def searched() -> tuple[Any, ModelConfig]:
    """The model in groups of 32 with AWQ's scales, calibrated on another novel than the one it is judged by."""
    if not (AWQ / "config.json").exists():
        texts = ["--calibrate", CALIBRATED, "--text", "asset:austen/northanger_abbey"]
        command = [
            "-m",
            "burnish",
            "compress",
            "smollm2",
            "group=64",
            "symmetric=false",
            "--with",
            "awq",
            *texts,
            "--out",
            str(AWQ),
        ]
        subprocess.run([sys.executable, *command], check=True)
    return load_folder(AWQ, dtype=torch.float32)


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
        samples, _ = read_samples(checkpoint, [CALIBRATED], ROWS, LONGEST)
        texts = [row[mask].tolist() for row, mask in zip(samples.ids, samples.mask, strict=True)]
        runs: dict[str, Any] = {"ours": Ours(model, config), "kv8": Ours(model, config, kv="int8")}
        runs["awq"] = Ours(*searched(), texts, kv="int8", head="int4")
        runs["transformers"] = Transformers(folder / "float")
        made = files(folder)
        runs |= {form: LlamaCpp(path) for form, path in made.items()}
        runs["Q4_0 kv"] = LlamaCpp(made["Q4_0"], type_k=EIGHT, type_v=EIGHT, flash_attn=True)
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
    return values | ratios(values, [name for name in runs if name.startswith("Q")])


def ratios(values: dict[str, float], formats: list[str]) -> dict[str, float]:
    """Ours to each format and to the fastest, of decode and of prefill, and what is above the fastest's perplexity."""
    found: dict[str, float] = {}
    fastest = {what: max(formats, key=lambda name: values[f"{name}.{what}"]) for what in ("decode", "prefill")}
    for what, best in fastest.items():
        for form in formats:
            most = ALIKE * values[f"{form}.perplexity"]
            ours = max(
                (name for name in OURS if values[f"{name}.perplexity"] <= most), key=lambda x: values[f"{x}.{what}"]
            )
            found[f"{what}.to.{form}"] = values[f"{ours}.{what}"] / values[f"{form}.{what}"]
            if form == best:
                found[f"{what}.ratio"] = found[f"{what}.to.{form}"]
                found[f"{what}.perplexity.above"] = values[f"{ours}.perplexity"] - values[f"{form}.perplexity"]
        found[f"{what}.least"] = min(found[f"{what}.to.{form}"] for form in formats)
    found["decode.transformers"] = values["ours.decode"] / values["transformers.decode"]
    return found


if __name__ == "__main__":
    main()
