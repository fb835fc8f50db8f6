"""A model written as ONNX: the graph of its kind, held against the model in onnxruntime before the file is in its place.

A file named so holds the graph alone; a folder has it as model.onnx, beside the configuration and the tokenizer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from burnish.errors import BurnishError, UserError
from burnish.export.folder import replacing_folder
from burnish.export.onnx_check import Agreement, check_decoder, check_encoder, shaken
from burnish.export.onnx_choices import FUSED, ONNX, Choices
from burnish.export.onnx_decoder import decoder_graph
from burnish.export.onnx_encoder import encoder_graph
from burnish.export.onnx_file import data_file, write_graph, writing
from burnish.export.onnx_filed import as_filed, integers_in, kind_label
from burnish.export.onnx_graph import Graph
from burnish.export.onnx_linear import Form
from burnish.export.onnx_matrix import Matrix, array
from burnish.export.onnx_parts import vocabulary
from burnish.export.onnx_session import need_onnx
from burnish.export.onnx_speed import times_faster
from burnish.export.onnx_tensorrt import side_files
from burnish.export.tokenizer import write_files
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import is_encoder, load_encoder
from burnish.load.model import load_model
from burnish.load.sentence_folder import Pooling, pooling_of
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder
from burnish.units import show

FILE = "model.onnx"
FLOATS, INTEGERS = (
    1e-4,
    1e-3,
)  # of the largest score: sums in another order; those and a last digit that falls otherwise
OURS = (FILE, f"{FILE}.data", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
BESIDE = ("chat_template.jinja", "model.trtexec.sh", "model.calibration.cache")
Found = dict[str, bool | float | str]


def convert_onnx(checkpoint: Checkpoint, to: Path, choices: Choices) -> Found:
    """Write a checkpoint as an ONNX file, or as a folder with one. Raises as `export_onnx` does."""
    choices.check()
    need_onnx("burnish export to ONNX")
    model: Decoder | Encoder
    pooling = None
    if is_encoder(checkpoint):
        model, shape = load_encoder(checkpoint, dtype=torch.float32)
        pooling = pooling_of(checkpoint, shape) if model.head is None else None
    else:
        model, _ = load_model(checkpoint, dtype=torch.float32)
    if to.suffix.lower() == ONNX:
        return export_onnx(model, to, choices, pooling)
    with replacing_folder(to, lambda name: name in (*OURS, *BESIDE)) as fresh:
        found = export_onnx(model, fresh / FILE, choices, pooling)
        settings: Mapping[str, Mapping[str, object]] = {
            "config.json": {k: v for k, v in checkpoint.config.items() if k != "quantization_config"},
            "generation_config.json": checkpoint.generation,
        }
        for name, content in settings.items():
            if content:
                (fresh / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if checkpoint.tokenizer is not None:
            write_files(checkpoint.tokenizer, fresh)
    return found


def export_onnx(model: Decoder | Encoder, to: Path, choices: Choices, pooling: Pooling | None = None) -> Found:
    """Write a model as the ONNX file `to`, whole or not at all, and say what holding it against the model showed.

    Matrices of integers stay integers; those of 8 bits only where they are the faster ones here, or by `choices.force`. Raises
    UserError for what has no form in ONNX and for a place that cannot be written; BurnishError where onnxruntime's scores are
    not the model's, and then nothing is left behind.
    """
    choices.check()
    encoder = isinstance(model, Encoder)
    if encoder and choices.head != "float32":
        raise UserError(f"--head {choices.head}: an encoder scores no vocabulary; leave it out")
    words = None if isinstance(model, Encoder) else vocabulary(array(model.head.weight), choices.head)
    fused = choices.format == FUSED
    form = Form(fused=fused, flat=encoder, unsigned=fused)
    found: Found = {}
    if fused and 8 in integers_in(model) and not choices.force:
        ratio = _speed(model, form, words, pooling)
        slower = ", so float32 was written; --force keeps them" if ratio < 1 else ""
        found["8-bit products"] = f"{ratio:.2f}x the speed of float32 here{slower}"
        model = as_filed(model, None, every=True) if slower else model
    reference = as_filed(model, words)
    allowed = INTEGERS if integers_in(model) or words is not None else FLOATS
    graph = graph_of(model, form, words, pooling)
    with writing(graph, to) as fresh:
        agreed = _held(fresh, reference)
        least = shaken(reference) if 8 in integers_in(model) else None
        told = f"allowed {allowed:g} of these" if least is None else f"{least.rms:.2g} when a last digit changes in it"
        if not (agreed.within(allowed) or (least is not None and agreed.like(least))):
            raise BurnishError(f"{to}: not written: onnxruntime's scores differ from the model's by {agreed}; {told}")
        found["scores"] = f"differ by {agreed}; {told}"
        if choices.accuracy_level != form.accuracy:
            write_graph(graph_of(model, replace(form, accuracy=choices.accuracy_level), words, pooling), fresh)
            rounded = _held(fresh, reference)
            found["scores, 8-bit inputs"] = f"differ by {rounded}; {rounded.same:.1%} of likeliest tokens the same"
        elif choices.head == "int8":
            found["note"] = (
                "onnxruntime has no fast product of an 8-bit vocabulary with float inputs; --accuracy-level 4 has"
            )
        for name, text in side_files(graph, fresh.name).items():
            fresh.with_name(name).write_text(text, encoding="utf-8")
            found[name.removeprefix(f"{fresh.stem}.")] = text.strip().splitlines()[-1] if name.endswith(".sh") else name
    beside = data_file(to)
    size = to.stat().st_size + (beside.stat().st_size if beside.is_file() else 0)
    kinds = kind_label(model, words)
    return {
        "size": show(size, "bytes"),
        "matrices": kinds,
        "operators": f"{len(graph.nodes)} ({choices.format})",
    } | found


def graph_of(model: Decoder | Encoder, form: Form, words: Matrix | None, pooling: Pooling | None) -> Graph:
    """The graph of either kind of model."""
    return encoder_graph(model, form, pooling) if isinstance(model, Encoder) else decoder_graph(model, form, words)


def _held(path: Path, model: Decoder | Encoder) -> Agreement:
    return check_encoder(path, model) if isinstance(model, Encoder) else check_decoder(path, model)


def _speed(model: Decoder | Encoder, form: Form, words: Matrix | None, pooling: Pooling | None) -> float:
    """How many times faster the file with integers of 8 bits is than the one in float32, here."""
    plain = as_filed(model, None, every=True)
    with _files(graph_of(model, form, words, pooling), graph_of(plain, form, words, pooling)) as (one, other):
        return times_faster(one, other)


@contextmanager
def _files(*graphs: Graph) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}{ONNX}" for number in range(len(graphs))]
        for graph, path in zip(graphs, paths, strict=True):
            write_graph(graph, path)
        yield paths
