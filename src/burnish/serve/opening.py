"""Opening a model to be served: its runner, the pool that fits, its words and template."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from burnish.compress.sample_files import read_samples
from burnish.config import ModelConfig
from burnish.data.cache import cache_folder
from burnish.data.chat_tokens import ChatTokenizer
from burnish.data.template import Template
from burnish.errors import MissingExtra, UserError
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import ends_of, tokenizer_of
from burnish.models.decoder import Decoder
from burnish.pool_size import PoolSize, Step, pool_within
from burnish.serve.engine import Engine, Limits
from burnish.serve.fitting import LONGEST, ROWS, Texts, fit_to
from burnish.serve.opened_memory import mapped
from burnish.serve.runners.choice import Build, fastest
from burnish.serve.runners.exact import Exact
from burnish.serve.runners.runner import Fit, Runner
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.served import Served
from burnish.serve.speculative.gate import LENGTHS
from burnish.serve.speculative.opening import Small, make_draft, small_model
from burnish.serve.text import Decode

RunnerName = Literal["auto", "torch", "onnxruntime"]


@dataclass(frozen=True)
class Settings:
    """`memory` bytes for pool and steps; `page` positions; `rows` sequences at once; `tokens` a step; `queue` that wait.

    `exact`: a request's last digits are the same in any company, for some of the speed. `weights` q4 holds matrices of layers
    in blocks of 4 bits. `head`: what the vocabulary's matrix is held in; auto: in blocks of 8 bits beside blocks of 4, else as it
    is. `kv` int8 holds keys and values in 8 bits. These and a head of 4 bits are fitted to `calibrate`, texts, or to what the model
    writes (`serve.fitting`).
    `draft`: what guesses tokens (`speculative.opening`).
    """

    memory: int
    page: int = 16
    rows: int = 16
    tokens: int = 256
    queue: int = 256
    runner: RunnerName = "auto"
    weights: Literal["float", "q4"] = "float"
    head: Literal["auto", "float32", "int8", "int4"] = "auto"
    kv: Literal["float", "int8"] = "float"
    calibrate: tuple[str, ...] = ()
    threads: int = 1
    name: str | None = None
    exact: bool = False
    draft: str | None = None


@mapped()
def open_served(source: str | Path, settings: Settings) -> tuple[Engine, Served, PoolSize]:
    """An engine for a model, and what a server needs to know of it. Raises UserError as `open_model`, `load_model` and
    `pool_within` do, and MissingExtra for a runner that is not installed."""
    checkpoint = open_model(source)
    model, config = load_model(checkpoint, dtype=torch.float32)
    tokenizer = tokenizer_of(checkpoint, config)
    small = None if settings.draft is None else small_model(settings.draft, (model, config, tokenizer))
    texts = None
    if settings.calibrate:
        samples, _ = read_samples(checkpoint, settings.calibrate, ROWS, LONGEST)
        texts = [ids[mask].tolist() for ids, mask in zip(samples.ids, samples.mask, strict=True)]
    engine, size = make_engine(model, config, settings, tokenizer.decode, small, texts)
    files, chat = checkpoint.tokenizer, None
    if files is not None and files.template is not None:
        chat = ChatTokenizer(tokenizer, Template.of(files.template, files.settings, "the chat template"), "all")
    name = settings.name or Path(str(source)).name
    room = min(config.max_positions, size.positions)
    served = Served(name, tokenizer, chat, ends_of(checkpoint, config), config.vocab, room)
    return engine, served, size


def make_engine(
    model: Any,
    config: ModelConfig,
    settings: Settings,
    decode: Decode | None = None,
    small: Small | None = None,
    texts: Texts | None = None,
) -> tuple[Engine, PoolSize]:
    """An engine with all it needs for its largest step, and the size of its pool; `small` guesses where a draft is asked for.

    Raises UserError as `make_runner` and `pool_within` do.
    """
    runner = make_runner(model, config, settings, texts)
    runner.reserve(settings.tokens)
    guesses, shape = 0 if settings.draft is None else LENGTHS[-1], None if small is None else small.config
    element = runner.dtype.itemsize
    held = element if runner.scales is None else torch.int8.itemsize
    step = Step(settings.tokens, settings.rows, element, held, guesses, runner.threads)
    size = pool_within(config, settings.memory, settings.page, step, shape)
    engine = Engine(runner, Limits(size.pages, size.page, settings.rows, settings.tokens, settings.queue), decode)
    if settings.draft is not None:
        room, plain = (size.pages, size.page), replace(settings, head="auto")
        engine.speculate(make_draft(small, config.vocab, room, lambda part, own: make_runner(part, own, plain, texts)))
    return engine, size


@mapped()
def make_runner(model: Any, config: ModelConfig, settings: Settings, texts: Texts | None = None) -> Runner:
    """The runner asked for; auto takes the faster one where both can, onnxruntime for blocks. `exact` is a mode of it.

    `texts`: token ids that it is fitted to where it is to be. Raises UserError for what no runner has.

    Beside onnxruntime's threads torch keeps to one, in all of this process: what little it computes is done sooner than
    threads have met.
    """
    assert isinstance(model, Decoder)
    model.eval()
    runner = _runner(model, config, settings, fit_to(model, settings.kv == "int8", settings.head == "int4", texts))
    if not isinstance(runner, TorchRunner):
        torch.set_num_threads(1)
    return Exact(runner) if settings.exact else runner


def _runner(model: Decoder, config: ModelConfig, settings: Settings, fit: Fit | None) -> Runner:
    there = importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnx") is not None
    if settings.runner == "onnxruntime" and not there:
        raise MissingExtra("--runner onnxruntime", "export", "onnxruntime")
    if settings.runner == "torch" or not there or config.experts:
        for name, value, plain in (("weights", settings.weights, "float"), ("head", settings.head, "auto")):
            if value not in (plain, "float32"):
                raise UserError(
                    f"--{name} {value}: only the runner onnxruntime has such blocks, and it takes no experts"
                )
        return TorchRunner(model, config, fit)
    builds: dict[str, Build] = {
        "onnxruntime": lambda part: _graphs(part, config, settings),
        "torch": lambda part: TorchRunner(part, config),
    }
    free = settings.runner == "auto" and settings.weights == "float" and settings.head in ("auto", "float32")
    name = fastest(builds, model, config, settings.rows, cache_folder()) if free else "onnxruntime"
    return TorchRunner(model, config, fit) if name == "torch" else _graphs(model, config, settings, fit)


def _graphs(model: Decoder, config: ModelConfig, settings: Settings, fit: Fit | None = None) -> Runner:
    from burnish.export.onnx_matrix import array
    from burnish.export.onnx_parts import vocabulary
    from burnish.serve.runners.blocks import BLOCK
    from burnish.serve.runners.onnx_runner import OnnxRunner

    stored = "int8" if settings.weights == "q4" and not config.hidden % BLOCK else "float32"
    if settings.head in ("float32", "int8"):
        stored = settings.head
    words = vocabulary(array(model.head.weight), stored)  # a head of 4 bits takes the place of it when it is fitted
    return OnnxRunner(model, config, settings.threads, words, settings.weights, fit=fit)
