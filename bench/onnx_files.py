"""ONNX files in onnxruntime beside the models they are of: bench/results/onnx_files.json.

SmolLM2 in float32 and in 4 bits: scores of text beside torch's and beside float64, 64 greedy tokens of prompts of unequal length,
tokens a second. MiniLM in float32 and in 8 bits: vectors, every product from the same inputs, the whole network beside its own
last digits, seconds of a batch: medians of alternating rounds.
"""

from __future__ import annotations

import copy
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.compress.rtn import integers
from burnish.compress.samples import Samples
from burnish.data.text import Texts
from burnish.export.onnx_check import check_decoder, check_encoder, shaken
from burnish.export.onnx_decoder import decoder_graph
from burnish.export.onnx_encoder import encoder_graph
from burnish.export.onnx_file import write_graph
from burnish.export.onnx_filed import as_filed
from burnish.export.onnx_graph import FLOAT, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import array, matrix_of
from burnish.export.onnx_parts import vocabulary
from burnish.export.onnx_session import OnnxDecoder, opened
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import tokenizer_of
from burnish.load.wheels import fetched
from burnish.mesh import Mesh
from burnish.ops.int4_linear import Int4Linear
from burnish.ops.int8_linear import Int8Linear
from burnish.serve.embed import Embedder
from burnish.serve.generate import generate, left_padded
from burnish.serve.sampling import Sampling
from burnish.techniques import int8
from burnish.weight_format import MATRICES, IntWeights
from record import record

THREADS, ROUNDS, GREEDY, STEPS, READ = 2, 7, 64, 16, 128
ROWS, LENGTH, CALIBRATED, JUDGED = 8, 128, 16, 48
TEXT = 40
PROMPTS = ("It is a truth universally acknowledged, that", "The sea", "She was not at all surprised when")
PORTABLE, FUSED = Form(), Form(fused=True)
ENCODER = Form(fused=True, flat=True, unsigned=True)
SIGNED = Form(fused=True, flat=True)


def passages() -> list[str]:
    (text,) = Texts.open(["asset:austen/persuasion"]).documents()
    words = text.split()
    cut = [" ".join(words[at : at + 90]) for at in range(0, len(words) - 90, 90)]
    random.Random(0).shuffle(cut)
    return cut


def written(graph: Graph, folder: Path, name: str) -> Path:
    path = folder / f"{name}.onnx"
    write_graph(graph, path)
    return path


def alternating(ways: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each, all in turn, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def in_four_bits(model: Any) -> Any:
    """Rounded to nearest, in groups of 64 with zero points; the float model shares everything else."""
    scheme, made = IntWeights(4, 64, False, "float32"), copy.deepcopy(model)
    for name, module in list(made.named_modules()):
        if name.split(".", 2)[-1] in MATRICES:
            own = integers(module.weight, scheme)
            made.set_submodule(name, Int4Linear(scheme, module.in_features, own, module.bias))
    return made


def on_the_right(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of rows padded at their end."""
    ids, mask = left_padded(rows)
    order = mask.long().argsort(dim=1, descending=True, stable=True)
    return ids.gather(1, order), mask.gather(1, order)


def scores(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> Any:
    return model.logits(model(ids, mask_BS=mask))[mask].numpy()


def apart(one: Any, two: Any) -> float:
    return float(np.abs(one - two).max())


def greedy_different(path: Path, model: Any, prompts: list[list[int]]) -> int:
    """Rows whose 64 likeliest tokens, one after another, are not the model's."""
    wanted = generate(model, prompts, Sampling(max_new_tokens=GREEDY))
    ids, mask = on_the_right(prompts)
    found = OnnxDecoder.of(path, THREADS).greedy(ids.numpy(), mask.long().numpy(), GREEDY).tolist()
    return sum(one != two for one, two in zip(found, wanted, strict=True))


def decoding(path: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    """A prompt read, and some tokens after it one by one."""
    session = OnnxDecoder.of(path, THREADS).session
    ids = np.random.default_rng(0).integers(0, 1000, (1, READ))
    begun = OnnxDecoder(session)
    begun.read(ids)

    def write() -> None:
        state = OnnxDecoder(session, begun.mask, begun.kept)
        for _ in range(STEPS):
            state.read(ids[:, :1])

    return lambda: (OnnxDecoder(session).read(ids), None)[1], write


def decoder(folder: Path) -> dict[str, float]:
    """SmolLM2's files, of the model and of it in 4 bits."""
    checkpoint = open_model("smollm2")
    model, config = load_model(checkpoint, dtype=torch.float32)
    prompts = [tokenizer_of(checkpoint, config).encode_prompt(prompt) for prompt in PROMPTS]
    small = in_four_bits(model)
    words = vocabulary(array(model.head.weight), "int8")
    cases = {
        "float portable": (model, PORTABLE),
        "float fused": (model, FUSED),
        "4 bits portable": (small, PORTABLE),
        "4 bits fused": (small, FUSED),
    }
    ids, mask = on_the_right([tokenizer_of(checkpoint, config).encode_prompt(text)[:TEXT] for text in passages()[:3]])
    found = {}
    values: dict[str, float] = {}
    reading, writing = {}, {}
    for name, (own, form) in cases.items():
        path = written(decoder_graph(own, form), folder, name)
        filed = as_filed(own, None)
        agreed = check_decoder(path, filed)
        values[f"share.{name}"] = agreed.difference / agreed.largest
        found[name] = OnnxDecoder.of(path, THREADS).read(ids.numpy(), mask.long().numpy())[mask.numpy()]
        values[f"difference.{name}"] = apart(found[name], scores(filed, ids, mask))
        values[f"mib.{name}"] = path.stat().st_size / 2**20
        values[f"greedy_different.{name}"] = greedy_different(path, filed, prompts)
        reading[name], writing[name] = decoding(path)
    fast = written(decoder_graph(small, Form(fused=True, accuracy=4), words), folder, "4 bits fused, 8-bit inputs")
    agreed = check_decoder(fast, as_filed(small, words))
    values["rms.8-bit inputs"], values["same_token.8-bit inputs"] = agreed.rms, agreed.same
    reading[fast.stem], writing[fast.stem] = decoding(fast)
    exact, torchs = scores(copy.deepcopy(model).double(), ids, mask), scores(model, ids, mask)
    values["float64.torch"] = apart(torchs, exact)
    values |= {f"float64.{name}": apart(found[name], exact) for name in cases if name.startswith("float")}
    values |= {f"read_tokens_per_second.{name}": READ / s for name, s in alternating(reading).items()}
    values |= {f"tokens_per_second.{name}": STEPS / s for name, s in alternating(writing).items()}
    return values


def products_apart(model: Any, given: tuple[torch.Tensor, ...], folder: Path) -> float:
    """The largest difference of any 8-bit product in onnxruntime from the module's, of the inputs that the model gives it."""
    seen: dict[str, torch.Tensor] = {}
    names = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
    handles = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, own, name=name: seen.update({name: own[0]}))
        for name in names
    ]
    model(given[0], mask_BS=given[1])
    for handle in handles:
        handle.remove()
    worst = 0.0
    for name in names:
        x, module = seen[name].flatten(0, -2), model.get_submodule(name)
        graph = Graph("one")
        graph.input("x", FLOAT, tuple(x.shape))
        graph.output(
            linear(graph, ENCODER, "one", matrix_of(name, module), "x"), "y", FLOAT, (len(x), module.out_features)
        )
        found = opened(written(graph, folder, "one"), THREADS).run(None, {"x": x.numpy()})[0]
        worst = max(worst, float(np.abs(found - module(x).numpy()).max()))
    return worst


def encoder(folder: Path) -> dict[str, float]:
    """MiniLM's files, of the model and of it in 8 bits."""
    checkpoint = open_folder(fetched("minilm"))
    embedder = Embedder.of(checkpoint)
    embedder.tokenizer._inner.enable_truncation(LENGTH)
    texts = [text.ids for text in embedder.tokenizer.encode(passages()[: CALIBRATED + JUDGED])]
    real, judged = Samples.of(texts[:CALIBRATED]), Samples.of(texts[CALIBRATED:])
    models = {"float": embedder.model}
    for name, config in {"static": int8.Config(), "token": int8.Config(activations="dynamic")}.items():
        own = copy.deepcopy(embedder.model)
        models[name] = int8.apply(config, own, Mesh(), int8.search(config, own, real))
    cases = {name: (name, ENCODER) for name in models} | {"static signed": ("static", SIGNED)}
    values: dict[str, float] = {}
    vectors, ways = {}, {}
    feed = {"input_ids": judged.ids.numpy(), "attention_mask": judged.mask.long().numpy()}
    feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
    few = {name: rows[:ROWS] for name, rows in feed.items()}
    for name, (kind, form) in cases.items():
        model = models[kind]
        path = written(encoder_graph(model, form, embedder.pooling), folder, f"minilm {name}")
        session, agreed = opened(path, THREADS), check_encoder(path, model)
        values[f"difference.minilm {name}"], values[f"mib.minilm {name}"] = (
            agreed.difference,
            path.stat().st_size / 2**20,
        )
        vectors[name] = session.run(["sentence_embedding"], feed)[0]
        ways[name] = lambda session=session: session.run(None, few)
        if kind != "float":
            cosines = (vectors[name] * vectors["float"]).sum(1)
            values[f"cosine.{name}"], values[f"least_cosine.{name}"] = float(cosines.mean()), float(cosines.min())
            values[f"times_last_digits.{name}"] = agreed.rms / shaken(model).rms
            values[f"product_difference.{name}"] = products_apart(model, (real.ids[:ROWS], real.mask[:ROWS]), folder)
    seconds = alternating(ways)
    values |= {f"milliseconds.minilm {name}": 1000 * s for name, s in seconds.items()}
    return values | {f"times_float.{name}": seconds["float"] / seconds[name] for name in ways if name != "float"}


def largest(values: dict[str, float], names: Iterable[str]) -> float:
    return max(values[name] for name in names)


@torch.inference_mode()
def main() -> None:
    """Everything, in one scratch folder."""
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as scratch:
        values = encoder(Path(scratch))
        print(json.dumps(values, indent=1), flush=True)
        values |= decoder(Path(scratch))
    floats = ("float portable", "float fused", "minilm float")
    values["error_over_torchs"] = (
        largest(values, ("float64.float portable", "float64.float fused")) / values["float64.torch"]
    )
    values["difference.floats"] = largest(values, (f"difference.{name}" for name in floats))
    values["difference.4 bits"] = largest(values, ("difference.4 bits portable", "difference.4 bits fused"))
    values["greedy_different"] = sum(value for name, value in values.items() if name.startswith("greedy_different."))
    values["threads"] = THREADS
    print(record("onnx_files", values), json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
