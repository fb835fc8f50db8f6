"""INT8: an ONNX network in 8-bit integers that is judged, kept in float where it suffers, and raced against the float file.

The judge's score may fall by `max_drop`. Where it falls by more, the convolutions whose own integers change the output most stay in
float, one, two, four, ... of them, until it does not; where that does not help, the file is not written and float is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from burnish.errors import UserError
from burnish.export.onnx_session import need_onnx
from burnish.records import replaced
from burnish.vision.onnx_fold import folded
from burnish.vision.onnx_providers import IMAGES, ON_CPU, has_integer_products, opened_on
from burnish.vision.onnx_qdq import Form, layers, values, written
from burnish.vision.onnx_race import Race, race
from burnish.vision.onnx_ranges import Images, Range, ranges, watch

LOOKED_AT = 4  # batches of samples that harm is measured on
Judge = Callable[[Path], float]


@dataclass(frozen=True)
class Settings:
    """`method` of calibration, by name; `reduce_range` None: where the processor needs it; `symmetric` for TensorRT."""

    method: Literal["minmax", "entropy", "percentile", "mse"] = "minmax"
    max_drop: float = 0.003
    reduce_range: bool | None = None
    symmetric: bool = False
    threads: int = 0

    @property
    def form(self) -> Form:
        reduce = not has_integer_products() if self.reduce_range is None else self.reduce_range
        return Form(self.symmetric, reduce)


@dataclass(frozen=True)
class Quantized:
    """`path` None: no 8-bit file was good enough. `chosen`: the file to run here, the faster of the good ones.

    `harm`: convolution -> mean square it alone adds to the output, relative to the output's, where it was measured.
    """

    path: Path | None
    chosen: Path
    float_score: float
    score: float
    kept: tuple[str, ...]
    harm: dict[str, float]
    bytes: int
    float_bytes: int
    race: Race | None
    verdict: str
    reduce_range: bool


def quantize(
    path: Path, out: Path, samples: Sequence[Images], settings: Settings = Settings(), judge: Judge | None = None
) -> Quantized:
    """Write the file `path` in 8 bits to `out`, calibrated on samples [B, C, *spatial].

    `judge` scores a file, more is better; without one the score is the share of the samples' pixels that are labelled as in float.
    Raises UserError for samples that are none, or not finite.
    """
    need_onnx(f"{out}: 8-bit integers")
    import onnx

    target, form = replaced(out), settings.form
    model = folded(onnx.load(str(path)))
    if not layers(model):
        raise UserError(f"{path}: has no convolutions with weights of their own; 8 bits are for those")
    known = ranges(watch(model, set(values(model).values()), samples), settings.method)
    score = judge or _agreement(path, samples[:LOOKED_AT])
    own, size = score(path), path.stat().st_size
    fresh = target.with_name(f".{target.name}.{os.getpid()}.writing")
    harm: dict[str, float] = {}
    found, kept = own, frozenset[str]()
    try:
        for kept in _choices(model, known, form, samples, harm):
            fresh.write_bytes(written(model, known, form, kept).SerializeToString(deterministic=True))
            found = score(fresh)
            if own - found <= settings.max_drop:
                os.replace(fresh, target)
                break
        else:
            cost = f"{own - found:.4f} of the score, {settings.max_drop:g} allowed"
            said = f"float kept: with {len(kept)} convolutions in float 8 bits still cost {cost}"
            return Quantized(
                None, path, own, found, tuple(sorted(kept)), harm, size, size, None, said, form.reduce_range
            )
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error}); choose a writable folder") from None
    finally:
        fresh.unlink(missing_ok=True)
    raced = race(path, out, np.asarray(samples[0][:1]), settings.threads)
    chosen = out if raced.ratio >= 1 else path
    left = tuple(name for name in layers(model) if name in kept)
    return Quantized(
        out, chosen, own, found, left, harm, target.stat().st_size, size, raced, raced.verdict, form.reduce_range
    )


def _choices(
    model: Any, known: dict[str, Range], form: Form, samples: Sequence[Images], harm: dict[str, float]
) -> Iterator[frozenset[str]]:
    """Sets of convolutions to keep in float: none, then the most harmful, up to half of them. Fills `harm`."""
    yield frozenset()
    harm.update(_harm(model, known, form, samples[:LOOKED_AT]))
    worst = sorted(harm, key=lambda name: (-harm[name], name))
    count = 1
    while count <= max(len(worst) // 2, 1):
        yield frozenset(worst[:count])
        count *= 2


def _harm(model: Any, known: dict[str, Range], form: Form, samples: Sequence[Images]) -> dict[str, float]:
    """What each convolution alone does in integers."""
    names = layers(model)
    wanted = _outputs(model, samples)
    size = float(np.mean([np.square(one).mean() for one in wanted])) or 1.0
    found = {}
    for name in names:
        made = _outputs(written(model, known, form, frozenset(names) - {name}), samples)
        off = np.mean([np.square(a - b).mean() for a, b in zip(made, wanted, strict=True)])
        found[name] = float(off) / size
    return found


def _outputs(model: Any, samples: Sequence[Images]) -> list[Any]:
    session = opened_on(model if isinstance(model, Path) else model.SerializeToString(), wanted=ON_CPU)
    return [session.run(None, {IMAGES: images})[0] for images in samples]


def _agreement(path: Path, samples: Sequence[Images]) -> Judge:
    """The share of pixels whose likeliest class is the float file's; with one class, whose sign is."""
    wanted = [_classes(scores) for scores in _outputs(path, samples)]

    def score(file: Path) -> float:
        found = [_classes(scores) for scores in _outputs(file, samples)]
        return float(np.mean([np.mean(a == b) for a, b in zip(found, wanted, strict=True)]))

    return score


def _classes(scores: Any) -> Any:
    return scores.argmax(1) if scores.shape[1] > 1 else scores > 0
