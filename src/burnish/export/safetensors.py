"""Model folders as Hugging Face reads them: config.json, safetensors (or shards), tokenizer files."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from burnish.config import ModelConfig
from burnish.errors import UserError, nearest
from burnish.export.folder import replacing_folder
from burnish.export.tokenizer import write_tokenizer
from burnish.layout import INDEX, file_name, metadata, shards
from burnish.load.arrange import to_theirs
from burnish.load.checkpoint import TokenizerFiles
from burnish.load.model import TRAINED_LENGTH
from burnish.tensors import head_names, links, tensor_shapes

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHARD_BYTES = 5 * 2**30
_OURS = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|model\.safetensors\.index)\.json|model.*\.safetensors"
    r"|chat_template\.jinja|modules\.json|sentence_bert_config\.json|1_Pooling/(config\.json)?"
)


def save_folder(
    model: nn.Module,
    config: ModelConfig,
    folder: str | Path,
    *,
    dtype: str = "float32",
    tokenizer: str | Path | TokenizerFiles | None = None,
    write_tied: bool = False,
    shard_bytes: int = SHARD_BYTES,
    trained_length: int | None = None,
) -> list[Path]:
    """Write `model` into `folder`, whole or not at all; returns the files written.

    A declared tie (config.tied) is left out of the file and recorded in its metadata, or with `write_tied` written in
    full for loaders that look for `lm_head.weight`. Any other two tensors that overlap in memory are refused, never
    dropped. One shard at a time is cast to `dtype`. `tokenizer`: a tokenizer.json, the folder it is in, or the content.
    `trained_length`: the longest row of tokens that the model has seen, for whoever generates with it.
    Raises UserError for an unknown dtype, a model that is not of this config, accidental sharing, a tokenizer that does
    not fit, a place that cannot be written.
    """
    tensors = named_for_file(model, config)
    embedding, head = head_names(config)
    if config.tied and write_tied:
        tensors[head] = tensors[embedding].clone()  # save_file takes no two names for one memory
    with writing_model(
        Path(folder),
        settings_of(config, dtype, trained_length),
        tensors,
        dtype,
        shard_bytes,
        metadata(config, write_tied),
    ) as fresh:
        if tokenizer is not None:
            write_tokenizer(tokenizer, config, fresh)
    return sorted(Path(folder).iterdir())


def settings_of(config: ModelConfig, dtype: str, trained_length: int | None) -> dict[str, dict[str, Any]]:
    """The settings of a model folder by file name."""
    known = {} if trained_length is None else {TRAINED_LENGTH: trained_length}
    special = {"bos_token_id": config.bos, "eos_token_id": config.eos, "pad_token_id": config.pad}
    return {
        "config.json": config.to_hf() | {"torch_dtype": dtype} | known,
        "generation_config.json": {k: v for k, v in special.items() if v is not None},
    }


@contextlib.contextmanager
def writing_model(
    folder: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: str,
    shard_bytes: int,
    about: dict[str, str],
) -> Iterator[Path]:
    """Write settings (by file name, `config.json` first) and weights into a fresh folder, which is given for what else
    belongs to a model and then becomes `folder`. Raises UserError as `save_folder` does."""
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r}: {nearest(dtype, DTYPES)}")
    if shard_bytes < 1:
        raise UserError(f"shard_bytes {shard_bytes}: at least 1 is needed")
    with replacing_folder(folder, lambda name: _OURS.fullmatch(name) is not None) as fresh:
        for name, content in settings.items():
            (fresh / name).parent.mkdir(exist_ok=True)
            _write_json(fresh / name, content)
        _write_weights(fresh, tensors, DTYPES[dtype], shard_bytes, about)
        yield fresh


def named_for_file(model: nn.Module, config: ModelConfig) -> dict[str, Tensor]:
    """Checkpoint name -> tensor, the tied head left out, after refusing what would be lost or is not this config's."""
    plain = getattr(model, "_orig_mod", model)  # a compiled module keeps the plain one here
    state: dict[str, Tensor] = {k: v.detach() for k, v in plain.state_dict().items()}
    shapes = tensor_shapes(config)
    for name in sorted(shapes.keys() ^ state.keys()):
        raise UserError(
            f"model: {name} is {'missing' if name in shapes else 'not a tensor of a ' + config.family + ' file'}"
        )
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise UserError(f"model: {name} has shape {tuple(state[name].shape)}, the config {shape}")
    if config.tied:
        head, embed = state.pop("head.weight"), state["embed.weight"]
        if head.data_ptr() != embed.data_ptr() and not torch.equal(head, embed):
            raise UserError(
                "model: head.weight and embed.weight differ, but the config says they are tied; set tied=false"
            )
    refuse_overlap(state)
    held = [link for link in links(config) if link.ours[0] in state]
    return {name: tensor for link in held for name, tensor in to_theirs(link, state).items()}


def refuse_overlap(state: Mapping[str, Tensor]) -> None:
    """Two tensors on the same bytes would come back as two that drift apart, or one of them would be dropped."""
    spans: list[tuple[str, int, int, str]] = []
    for name, tensor in state.items():
        if tensor.is_meta:
            raise UserError(f"model: {name} is on the meta device and holds no values; load weights before saving")
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        spans.append((str(tensor.device), start, start + (last + 1) * tensor.element_size(), name))
    spans.sort()
    for one, two in itertools.pairwise(spans):
        if one[0] == two[0] and two[1] < one[2]:
            raise UserError(
                f"model: {one[3]} and {two[3]} share memory, which the config does not declare; copy one first"
            )


def _write_weights(
    folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, shard_bytes: int, about: dict[str, str]
) -> None:
    formats = {name: dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in tensors.items()}
    sizes = {name: tensor.numel() * formats[name].itemsize for name, tensor in tensors.items()}
    parts = shards(sizes, shard_bytes)
    count = len(parts)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = file_name(number, count)
        part = {n: tensors[n].to(device="cpu", dtype=formats[n]).contiguous() for n in names}
        save_file(part, folder / file, metadata=about)
        _order_metadata(folder / file)
        shutil.copymode(folder / "config.json", folder / file)  # save_file makes it readable by its owner alone
        weight_map |= dict.fromkeys(names, file)
    if count > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())} | about, "weight_map": weight_map})


def _order_metadata(file: Path) -> None:
    """Give the header's metadata a fixed order, so that equal weights are equal files; the library's order is random."""
    with file.open("r+b") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        if len(ordered) == length:
            stream.seek(8)
            stream.write(ordered)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
