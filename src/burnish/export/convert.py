"""Convert: any model that can be opened, written as a Hugging Face folder or a GGUF file, and read again to see what it lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from burnish.errors import UserError, nearest
from burnish.export.encoder import save_encoder
from burnish.export.gguf import save_gguf
from burnish.export.safetensors import DTYPES, save_folder
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import is_encoder, load_encoder
from burnish.load.folder import open_folder
from burnish.load.gguf import open_gguf
from burnish.load.model import TRAINED_LENGTH, load_model
from burnish.load.sentence_folder import stated_pooling
from burnish.units import show

GGUF, GGUF_FORMS = ".gguf", ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")


@dataclass(frozen=True)
class Lost:
    """How far written weights are from those they were made of, over `tensors` tensors.

    `sqnr_db` is ten times the decimal log of the weights' squares over those of the differences, infinite if all are equal.
    """

    tensors: int
    sqnr_db: float
    largest: float

    def __str__(self) -> str:
        if self.largest == 0:
            return f"all {self.tensors} tensors equal"
        return f"rounded: {self.sqnr_db:.1f} dB above what was lost, largest difference {self.largest:.3g}"


def convert(checkpoint: Checkpoint, to: Path, form: str | None = None) -> dict[str, bool | float | str]:
    """Write `checkpoint` to `to`: a GGUF file if it is named so (default f16), else a folder (default: the format it has).

    Gives what reading it again shows. Raises UserError for a format that the kind of file does not have, and as the reader
    and writer do.
    """
    gguf = to.suffix.lower() == GGUF
    forms = GGUF_FORMS if gguf else tuple(DTYPES)
    if form is not None and form.lower() not in forms:
        kind = "GGUF file" if gguf else "model folder"
        raise UserError(f"--dtype {form}: a {kind} has {', '.join(forms)} ({nearest(form.lower(), forms)})")
    if gguf:
        return _as_gguf(checkpoint, to, (form or "f16").upper())
    return _as_folder(checkpoint, to, form and form.lower())


def _as_gguf(checkpoint: Checkpoint, to: Path, form: str) -> dict[str, bool | float | str]:
    written = save_gguf(checkpoint, to, form)
    stored = ", ".join(f"{count} {name}" for name, count in written.storages.items())
    found: dict[str, bool | float | str] = {"size": show(written.bytes, "bytes"), "tensors": stored}
    found["weights"] = str(lost(checkpoint, open_gguf(to)))
    if written.wider:
        found["kept in F16"] = f"{', '.join(written.wider)} (rows that no block of {form} divides)"
    return found | {f"note {number}": note for number, note in enumerate(written.notes, 1)}


def _as_folder(checkpoint: Checkpoint, to: Path, form: str | None) -> dict[str, bool | float | str]:
    dtype = None if form is None else DTYPES[form]
    if is_encoder(checkpoint):
        encoder, shape = load_encoder(checkpoint, dtype=dtype)
        stored = _name(next(encoder.parameters()))
        pooling = stated_pooling(checkpoint, shape)
        save_encoder(encoder, shape, to, dtype=stored, tokenizer=checkpoint.tokenizer, pooling=pooling)
    else:
        model, config = load_model(checkpoint, dtype=dtype, integers=False)
        trained, stored = checkpoint.config.get(TRAINED_LENGTH), _name(model.embed.weight)
        length = trained if isinstance(trained, int) else None
        save_folder(model, config, to, dtype=stored, tokenizer=checkpoint.tokenizer, trained_length=length)
    size = sum(path.stat().st_size for path in to.glob("*.safetensors"))
    back = open_folder(to)
    tensors = f"{len(back.tensors)} {stored}"
    return {"size": show(size, "bytes"), "tensors": tensors, "weights": str(lost(checkpoint, back))}


def _name(weight: Tensor) -> str:
    """What a folder stores a weight as; nothing is stored wider than float32."""
    return next((name for name, dtype in DTYPES.items() if dtype == weight.dtype), "float32")


def lost(before: Checkpoint, after: Checkpoint) -> Lost:
    """What became of the weights on their way from one checkpoint to another, over the tensors of both."""
    signal = noise = worst = 0.0
    names = [name for name in before.tensors if name in after.tensors]
    for name in names:
        one, two = (checkpoint.tensors[name].read().double() for checkpoint in (before, after))
        off = one - two
        signal += one.square().sum().item()
        noise += off.square().sum().item()
        worst = max(worst, off.abs().max().item())
    ratio = math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf
    return Lost(len(names), ratio, worst)
