"""Written: a compressed model as a folder, read again before it counts, with its tables and its report beside the weights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

from burnish import layout, lock, weight_format
from burnish.compress.passes import Compressed, kept_by_pattern
from burnish.compress.sensitivity import Exchange
from burnish.compress.subject import Subject
from burnish.compress.verify import kept_matrices
from burnish.compressions import SHARD_BYTES
from burnish.encoders.config import EncoderConfig
from burnish.encoders.weight_files import encoder_file_bytes
from burnish.export.compressed_encoder import save_compressed_encoder
from burnish.export.compressed_tensors import save_compressed
from burnish.export.encoder import save_encoder
from burnish.export.folder import replacing_folder
from burnish.export.safetensors import save_folder
from burnish.hardware import detect
from burnish.load.encoder import is_encoder, load_encoder
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.load.sentence_folder import pooling_of
from burnish.models.experts import GroupedLinear
from burnish.models.layers import Linear
from burnish.records import Plan, Records, SavedFile
from burnish.report import make_report, write_report
from burnish.verified import Cost, Verified
from burnish.work import state_bytes

OURS = (
    r"(config|generation_config|tokenizer|tokenizer_config|model\.safetensors\.index)\.json|model.*\.safetensors"
    r"|chat_template\.jinja|report\.(json|html)|\w+\.table\.json"
    r"|modules\.json|sentence_bert_config\.json|1_Pooling/(config\.json)?"
)


def kept_in(made: Compressed, kept: Sequence[Exchange]) -> frozenset[str]:
    """The matrices that stay as they were: those of kept parts, and those that the technique's own settings leave alone."""
    return kept_matrices(made.own, kept, (Linear, GroupedLinear)) | kept_by_pattern(made.own, made.keep)


def predicted_bytes(made: Compressed, kept: frozenset[str]) -> int:
    """Bytes of the weight files, from sizes alone."""
    if isinstance(made.config, EncoderConfig):
        return encoder_file_bytes(made.config, made.scheme, made.dtype, SHARD_BYTES, kept)
    if made.scheme is None:
        return layout.weight_bytes(made.config, made.dtype, False, SHARD_BYTES)
    return weight_format.file_bytes(made.config, made.scheme, SHARD_BYTES, kept)


def predicted_memory(made: Compressed, kept: frozenset[str]) -> int:
    """Bytes of the weights in memory, from sizes alone: those of the work, and what matrices of kept parts take more."""
    total = int(state_bytes(made.work)["parameter"])
    for name in kept - kept_by_pattern(made.own, made.keep):
        if made.scheme is not None and name.split(".", 2)[-1] in weight_format.MATRICES:
            out, inputs = made.own.get_submodule(name).get_parameter("weight").shape
            total += int(out * inputs * made.work.bytes.parameter) - weight_format.held_bytes(
                made.scheme, (out, inputs)
            )
    return total


def source_bytes(subject: Subject, dtype: str) -> int:
    """Bytes of the model's own weight files, were they written in `dtype`."""
    if isinstance(subject.config, EncoderConfig):
        return encoder_file_bytes(subject.config, None, dtype, SHARD_BYTES)
    return layout.weight_bytes(subject.config, dtype, False, SHARD_BYTES)


def write_model(
    subject: Subject,
    made: Compressed,
    verified: Verified,
    out: Path,
    seconds: dict[str, float],
    tables: dict[str, Callable[[Path], None]],
) -> Verified:
    """Write the model, its tables and its report into `out`, whole or not at all; gives the verdict with what was measured.

    What was written is read again, and must be the model that was judged, tensor for tensor.
    """
    with replacing_folder(out, lambda name: re.fullmatch(OURS, name) is not None) as fresh:
        _save(subject, made, fresh)
        _read_again(made.model, fresh)
        measured = float(sum(path.stat().st_size for path in fresh.glob("*.safetensors")))
        verified = verified.model_copy(update={"costs": tuple(_with(cost, measured) for cost in verified.costs)})
        for name, save in tables.items():
            save(fresh / name)
        _report(subject, verified, fresh, seconds)
    return verified


def _save(subject: Subject, made: Compressed, folder: Path) -> None:
    integers = made.scheme is not None and any(hasattr(module, "dequantized") for module in made.model.modules())
    if isinstance(made.config, EncoderConfig):
        own = {"tokenizer": subject.checkpoint.tokenizer, "pooling": pooling_of(subject.checkpoint, made.config)}
        if integers:
            save_compressed_encoder(made.model, made.config, folder, **own)  # type: ignore[arg-type]
        else:
            save_encoder(made.model, made.config, folder, dtype=made.dtype, **own)  # type: ignore[arg-type]
        return
    trained = subject.checkpoint.config.get("trained_length")
    length = trained if isinstance(trained, int) else None
    more = {"tokenizer": subject.checkpoint.tokenizer, "trained_length": length, "shard_bytes": SHARD_BYTES}
    if not integers:
        save_folder(made.model, made.config, folder, dtype=made.dtype, **more)  # type: ignore[arg-type]
    else:
        save_compressed(made.model, made.config, folder, **more)  # type: ignore[arg-type]


def _read_again(model: nn.Module, folder: Path) -> None:
    """Raises RuntimeError where what was written is not what was judged."""
    there = open_folder(folder)
    load: Callable[..., tuple[nn.Module, object]] = load_encoder if is_encoder(there) else load_model
    loaded, _ = load(there, dtype=torch.float32)
    ours, theirs = model.state_dict(), loaded.state_dict()
    for name in ours.keys() | theirs.keys():
        if name not in ours or name not in theirs or not torch.equal(_wide(ours[name]), _wide(theirs[name])):
            raise RuntimeError(f"{folder}: {name} does not read back as it was judged")


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().float() if tensor.is_floating_point() else tensor.detach().cpu()


def _with(cost: Cost, measured: float) -> Cost:
    return cost.model_copy(update={"compressed": measured}) if cost.key == "file.bytes" else cost


def _report(subject: Subject, verified: Verified, folder: Path, seconds: dict[str, float]) -> None:
    machine = detect()
    size = next(cost for cost in verified.costs if cost.key == "file.bytes")
    assert size.predicted is not None
    assert size.compressed is not None
    records = Records(
        started=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        seconds=seconds,
        machine={"processor": machine.name, "threads": torch.get_num_threads(), "device": subject.device},
        versions=lock.versions(),
        measured={"compressed.bytes": size.compressed},
        files=tuple(_saved(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()),
        verified=verified,
        notes=verified.notes,
    )
    plan = Plan(recipe=subject.name, machine=machine.name, predicted={"compressed.bytes": size.predicted})
    write_report(make_report(plan, records), folder)


def _saved(path: Path, folder: Path) -> SavedFile:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return SavedFile(name=str(path.relative_to(folder)), bytes=path.stat().st_size, sha256=digest)
