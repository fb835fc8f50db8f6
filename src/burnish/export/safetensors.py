"""Model folders as Hugging Face writes and reads them: config.json, safetensors (or shards), tokenizer files."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from burnish.config import ModelConfig
from burnish.errors import UserError, nearest
from burnish.export.folder import replacing_folder
from burnish.export.tokenizer import write_tokenizer
from burnish.layout import INDEX, SINGLE, file_name, metadata, shards
from burnish.models.decoder import Decoder
from burnish.tables.families import FAMILIES

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHARD_BYTES = 5 * 2**30
TRAINED_LENGTH = "trained_length"  # key of config.json; other readers leave it alone
_OURS = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|model\.safetensors\.index)\.json|model.*\.safetensors"
)
_DERIVED = ".rotary_emb.inv_freq"  # older files store the rotary frequencies, which follow from the config


def save_folder(
    model: nn.Module,
    config: ModelConfig,
    folder: str | Path,
    *,
    dtype: str = "float32",
    tokenizer: str | Path | None = None,
    write_tied: bool = False,
    shard_bytes: int = SHARD_BYTES,
    trained_length: int | None = None,
) -> list[Path]:
    """Write `model` into `folder`, whole or not at all; returns the files written.

    A declared tie (config.tied) is left out of the file and recorded in its metadata, or with `write_tied` written in
    full for loaders that look for `lm_head.weight`. Any other two tensors that overlap in memory are refused, never
    dropped. One shard at a time is cast to `dtype`. `tokenizer`: a tokenizer.json, or the folder it is in.
    `trained_length`: the longest row of tokens that the model has seen, for whoever generates with it.
    Raises UserError for an unknown dtype, a model that is not of this config, accidental sharing, a tokenizer that does
    not fit, a place that cannot be written.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r}: {nearest(dtype, DTYPES)}")
    if shard_bytes < 1:
        raise UserError(f"shard_bytes {shard_bytes}: at least 1 is needed")
    tensors = _named_for_file(model, config)
    embedding, head = _tied_names(config)
    about = metadata(config, write_tied)
    if config.tied and write_tied:
        tensors[head] = tensors[embedding].clone()  # save_file takes no two names for one memory
    with replacing_folder(Path(folder), lambda name: _OURS.fullmatch(name) is not None) as fresh:
        known = {} if trained_length is None else {TRAINED_LENGTH: trained_length}
        _write_json(fresh / "config.json", config.to_hf() | {"torch_dtype": dtype} | known)
        special = {"bos_token_id": config.bos, "eos_token_id": config.eos, "pad_token_id": config.pad}
        _write_json(fresh / "generation_config.json", {k: v for k, v in special.items() if v is not None})
        _write_weights(fresh, tensors, DTYPES[dtype], shard_bytes, about)
        if tokenizer is not None:
            write_tokenizer(tokenizer, config, fresh)
        names = sorted(path.name for path in fresh.iterdir())
    return [Path(folder) / name for name in names]


def load_folder(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> tuple[Decoder, ModelConfig]:
    """Read a model folder; weights keep the file's dtype (the widest, if several) unless `dtype` is given.

    One copy of the weights is held: the model is built on the meta device and takes each tensor as it is read. Raises
    UserError naming file and key for whatever is missing, truncated, unexpected, of a wrong shape, or unsafe to open.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; a model folder holds config.json and {SINGLE}")
    config = ModelConfig.from_file(folder / "config.json")
    model, shapes = _empty(config)
    wanted = {theirs: shapes[ours] for ours, theirs in file_names(config).items()}
    found = _locate(folder, wanted)
    embedding, head = _tied_names(config)
    for name in wanted:
        if name not in found and not (config.tied and name == head):
            raise UserError(f"{folder}: {name} is missing from the weights")
    state = _read(found, wanted, dtype, device)
    if config.tied and head in state and not torch.equal(state[head], state[embedding]):
        raise UserError(f"{found[head]}: {head} differs from {embedding}, but config.json says they are tied")
    return materialise(model, {ours: state[n] for ours, n in file_names(config).items() if n in state}), config


def materialise(model: Decoder, state: Mapping[str, Tensor]) -> Decoder:
    """Give a model built on the meta device its weights, by our names, without a copy, and tie the head again.

    A plain `load_state_dict(assign=True)` would leave head and embedding as two parameters. For a tied model
    `head.weight` may be left out. Raises UserError naming a key that is missing, unknown or of a wrong shape.
    """
    given = dict(state)
    if model.shape.tied and "embed.weight" in given:
        given["head.weight"] = given["embed.weight"]
    wanted = model.state_dict()
    for name in sorted(wanted.keys() ^ given.keys()):
        raise UserError(f"weights: {name} is {'missing' if name in wanted else 'unknown to this model'}")
    for name, tensor in given.items():
        if tensor.shape != wanted[name].shape:
            raise UserError(f"weights: {name} has shape {tuple(tensor.shape)}, the model {tuple(wanted[name].shape)}")
    model.load_state_dict(given, assign=True)
    model.tie()
    return model


def file_names(config: ModelConfig) -> dict[str, str]:
    """Our name of each tensor -> its name in a checkpoint of this family, in the order of the layers."""
    names: dict[str, str] = {}
    for ours, theirs in FAMILIES[config.family].names.items():
        for i in range(config.layers) if "{i}" in ours else (0,):
            names[ours.replace("{i}", str(i))] = theirs.replace("{i}", str(i))
    return names


def _empty(config: ModelConfig) -> tuple[Decoder, dict[str, tuple[int, ...]]]:
    """The model without memory, and the shape of each of its tensors."""
    with torch.device("meta"):
        model = Decoder(config)
    return model, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _tied_names(config: ModelConfig) -> tuple[str, str]:
    names = FAMILIES[config.family].names
    return names["embed.weight"], names["head.weight"]


def _named_for_file(model: nn.Module, config: ModelConfig) -> dict[str, Tensor]:
    """Checkpoint name -> tensor, the tied head left out, after refusing what would be lost or is not this config's."""
    plain = getattr(model, "_orig_mod", model)  # a compiled module keeps the plain one here
    state: dict[str, Tensor] = {k: v.detach() for k, v in plain.state_dict().items()}
    names = file_names(config)
    for name in sorted(names.keys() ^ state.keys()):
        raise UserError(
            f"model: {name} is {'missing' if name in names else 'not a tensor of a ' + config.family + ' file'}"
        )
    for name, shape in _empty(config)[1].items():
        if tuple(state[name].shape) != shape:
            raise UserError(f"model: {name} has shape {tuple(state[name].shape)}, the config {shape}")
    if config.tied:
        head, embed = state.pop("head.weight"), state["embed.weight"]
        if head.data_ptr() != embed.data_ptr() and not torch.equal(head, embed):
            raise UserError(
                "model: head.weight and embed.weight differ, but the config says they are tied; set tied=false"
            )
    _refuse_overlap(state)
    return {names[ours]: tensor for ours, tensor in state.items()}


def _refuse_overlap(state: Mapping[str, Tensor]) -> None:
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
    parts = shards({name: tensor.numel() * dtype.itemsize for name, tensor in tensors.items()}, shard_bytes)
    count = len(parts)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = file_name(number, count)
        part = {n: tensors[n].to(device="cpu", dtype=dtype).contiguous() for n in names}
        save_file(part, folder / file, metadata=about)
        _order_metadata(folder / file)
        shutil.copymode(folder / "config.json", folder / file)  # save_file makes it readable by its owner alone
        weight_map |= dict.fromkeys(names, file)
    if count > 1:
        total = sum(t.numel() * dtype.itemsize for t in tensors.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total} | about, "weight_map": weight_map})


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


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _locate(folder: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Path]:
    """Checkpoint name -> the file it is in, from the single file or the index; reads names and shapes only."""
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        return _keys(folder / SINGLE, wanted)
    if not index.is_file():
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        if pickles:
            raise UserError(
                f"{folder / pickles[0]}: a pickle file can run code and is not read; convert it to {SINGLE}"
            )
        raise UserError(f"{folder}: no {SINGLE} and no {INDEX}")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{index}: is not an index (JSON with weight_map)") from None
    found: dict[str, Path] = {}
    for file in sorted(set(files.values())):
        if file != Path(file).name or "\\" in file or not file.endswith(".safetensors"):
            raise UserError(f"{index}: names {file!r}; only .safetensors files in the same folder are read")
        found |= _keys(folder / file, wanted)
    for name, file in files.items():
        if name in wanted and found.get(name) != folder / file:
            raise UserError(f"{folder / file}: {name} is missing, though {INDEX} says it is here")
    return found


def _keys(file: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Path]:
    with _open(file) as content:
        names = [name for name in content.keys() if not name.endswith(_DERIVED)]  # noqa: SIM118 - not a mapping
        for name in names:
            if name not in wanted:
                raise UserError(f"{file}: unexpected {name}; config.json describes no such weight")
            shape = tuple(content.get_slice(name).get_shape())
            if shape != wanted[name]:
                raise UserError(f"{file}: {name} has shape {shape}, config.json says {wanted[name]}")
    return dict.fromkeys(names, file)


def _read(
    found: Mapping[str, Path],
    wanted: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for file in sorted(set(found.values())):
        with _open(file) as content:
            for name in (n for n in wanted if found.get(n) == file):
                mapped = content.get_tensor(name)
                if not mapped.is_floating_point() or mapped.element_size() == 1:
                    raise UserError(f"{file}: {name} is {mapped.dtype}; this decoder loads {', '.join(DTYPES)}")
                # a copy, so that no weight hangs on a mapped file that may be rewritten
                state[name] = mapped.to(device=device, dtype=dtype or mapped.dtype, copy=True)
    widest = max((t.dtype for t in state.values()), key=lambda d: d.itemsize)
    if len({t.dtype for t in state.values()}) > 1:
        state = {name: tensor.to(widest) for name, tensor in state.items()}
    return state


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"not a whole safetensors file: {error}"
        raise UserError(f"{file}: {reason}") from None
