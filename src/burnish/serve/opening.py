"""Opening a model to be served: its runner, the pool that fits, its words and template."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from burnish.config import ModelConfig
from burnish.data.cache import cache_folder
from burnish.data.chat_tokens import ChatTokenizer
from burnish.data.template import Template
from burnish.errors import MissingExtra, UserError
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import ends_of, tokenizer_of
from burnish.models.decoder import Decoder
from burnish.pool_size import PoolSize, pool_within
from burnish.serve.engine import Engine, Limits
from burnish.serve.runners.choice import Build, fastest
from burnish.serve.runners.exact import Exact
from burnish.serve.runners.runner import Runner
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
    in blocks of 4 bits, that of the vocabulary in blocks of 8. `draft`: what guesses tokens (`speculative.opening`).
    """

    memory: int
    page: int = 16
    rows: int = 16
    tokens: int = 256
    queue: int = 256
    runner: RunnerName = "auto"
    weights: Literal["float", "q4"] = "float"
    threads: int = 1
    name: str | None = None
    exact: bool = False
    draft: str | None = None


def open_served(source: str | Path, settings: Settings) -> tuple[Engine, Served, PoolSize]:
    """An engine for a model, and what a server needs to know of it. Raises UserError as `open_model`, `load_model` and
    `pool_within` do, and MissingExtra for a runner that is not installed."""
    checkpoint = open_model(source)
    model, config = load_model(checkpoint, dtype=torch.float32)
    tokenizer = tokenizer_of(checkpoint, config)
    small = None if settings.draft is None else small_model(settings.draft, (model, config, tokenizer))
    engine, size = make_engine(model, config, settings, tokenizer.decode, small)
    files, chat = checkpoint.tokenizer, None
    if files is not None and files.template is not None:
        chat = ChatTokenizer(tokenizer, Template.of(files.template, files.settings, "the chat template"), "all")
    name = settings.name or Path(str(source)).name
    room = min(config.max_positions, size.positions)
    served = Served(name, tokenizer, chat, ends_of(checkpoint, config), config.vocab, room)
    return engine, served, size


def make_engine(
    model: Any, config: ModelConfig, settings: Settings, decode: Decode | None = None, small: Small | None = None
) -> tuple[Engine, PoolSize]:
    """An engine with all it needs for its largest step, and the size of its pool; `small` guesses where a draft is asked for.

    Raises UserError as `make_runner` and `pool_within` do.
    """
    runner = make_runner(model, config, settings)
    runner.reserve(settings.tokens)
    guesses, shape = 0 if settings.draft is None else LENGTHS[-1], None if small is None else small.config
    sizes = (settings.memory, settings.page, settings.tokens, settings.rows, runner.dtype.itemsize)
    size = pool_within(config, *sizes, shape, guesses)
    engine = Engine(runner, Limits(size.pages, size.page, settings.rows, settings.tokens, settings.queue), decode)
    if settings.draft is not None:
        room = (size.pages, size.page)
        engine.speculate(make_draft(small, config.vocab, room, lambda part, own: make_runner(part, own, settings)))
    return engine, size


def make_runner(model: Any, config: ModelConfig, settings: Settings) -> Runner:
    """The runner asked for; auto takes the faster one where both can, onnxruntime for 4-bit blocks. `exact` is a mode of it.

    Beside onnxruntime's threads torch keeps to one, in all of this process: what little it computes is done sooner than
    threads have met.
    """
    runner = _runner(model, config, settings)
    if not isinstance(runner, TorchRunner):
        torch.set_num_threads(1)
    return Exact(runner) if settings.exact else runner


def _runner(model: Any, config: ModelConfig, settings: Settings) -> Runner:
    assert isinstance(model, Decoder)
    model.eval()
    there = importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnx") is not None
    if settings.runner == "onnxruntime" and not there:
        raise MissingExtra("--runner onnxruntime", "export", "onnxruntime")
    if settings.runner == "torch" or not there or config.experts:
        if settings.weights != "float":
            raise UserError("--weights q4: only the runner onnxruntime has blocks of 4 bits, and it takes no experts")
        return TorchRunner(model, config)
    builds: dict[str, Build] = {
        "onnxruntime": lambda part: _graphs(part, config, settings),
        "torch": lambda part: TorchRunner(part, config),
    }
    free = settings.runner == "auto" and settings.weights == "float"
    name = fastest(builds, model, config, settings.rows, cache_folder()) if free else "onnxruntime"
    return builds[name](model)


def _graphs(model: Decoder, config: ModelConfig, settings: Settings) -> Runner:
    from burnish.export.onnx_matrix import array
    from burnish.export.onnx_parts import blocks8
    from burnish.serve.runners.blocks import BLOCK
    from burnish.serve.runners.onnx_runner import OnnxRunner

    small = settings.weights == "q4" and not config.hidden % BLOCK
    words = blocks8(array(model.head.weight), BLOCK) if small else None
    return OnnxRunner(model, config, settings.threads, words, settings.weights)
