"""Weights and activations in 8-bit integers after training: ranges are learned from samples, no weight is trained.

Idea    Jacob et al. 2017 (arXiv 1712.05877), section 2: y = s_x s_w q_x q_w^T. A weight's range is known; an activation's
        depends on what is read, and is taken from a calibration set (Wu et al. 2020, arXiv 2004.09602): one scale a tensor,
        static, or without one from each token as it comes (`activations` dynamic). Matrices have a scale an output.
        Channels of large activations are divided and the weights multiplied first where that folds into what makes them
        (SmoothQuant, Xiao et al. 2022, arXiv 2211.10438), by a strength that is searched.
Gain    a matrix takes a quarter of its float32 bytes, and products of integers are faster where the hardware has them.
Price   a pass or two over the samples. Here products of integers are exact but made in float32: slower.
Limits  embedding, norms, head, pooler and attention itself stay. Experts are refused. A set that is not like what will be read, or
        whose padding is counted, costs quality.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.section import Section
from burnish.techniques import awq
from burnish.weight_format import IntWeights
from burnish.work import Work

if TYPE_CHECKING:
    from burnish.compress.int8_table import Table
    from burnish.compress.samples import Samples

STRENGTHS = tuple(step / 20 for step in range(6, 20))


class Config(Section):
    """`calibrator`: max (nothing clipped), entropy, percentile, mse, relative (mse of each token relative to its size), or the
    best of them for each kind of tensor by the model's last states.

    `percent` is the percentile's. `smooth`: whether channels are scaled first; a number is the one strength to use. `keep`:
    patterns of matrices that stay as they are, such as `mlp.down`. `dtype`: that of scales and of files.
    """

    activations: Literal["static", "dynamic"] = "static"
    calibrator: Literal["search", "max", "entropy", "percentile", "mse", "relative"] = "search"
    percent: float = Field(default=99.999, gt=0, le=100)
    smooth: Literal["search", "off"] | float = "search"
    keep: tuple[str, ...] = ()
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    @property
    def scheme(self) -> IntWeights:
        """The integers that a file holds."""
        inputs = "tensor" if self.activations == "static" else "token"
        return IntWeights(bits=8, group=-1, symmetric=True, dtype=self.dtype, inputs=inputs)

    @property
    def strengths(self) -> tuple[float, ...]:
        """The strengths of smoothing that are tried."""
        if self.smooth == "off":
            return ()
        return STRENGTHS if isinstance(self.smooth, str) else (self.smooth,)

    @property
    def needs_samples(self) -> bool:
        """Whether anything is calibrated."""
        return self.activations == "static" or bool(self.strengths)


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for a model of several ranks, one without matrices and one with experts, a strength beyond 0 to 1,
    and `keep` that leaves nothing to do."""
    if np.any(mesh.world > 1):
        raise UserError(
            f"techniques.int8: a model is compressed on one rank, not on {mesh.world}; train, then compress"
        )
    if isinstance(config.smooth, float) and not 0 <= config.smooth <= 1:
        raise UserError(f"techniques.int8.smooth {config.smooth}: 0 to 1, search and off work")
    names = {op.name for block in work.blocks for op in block.ops}
    if "expert_up" in names:
        raise UserError("techniques.int8: experts have no 8-bit products here; awq compresses their weights")
    if not names & awq.MATRICES.keys():
        raise UserError("techniques.int8: the model has no matrix that is compressed; a decoder or encoder has")
    same: Any = config
    awq.check_left(same, work, "int8")


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with matrices as bytes of integers and scales; nothing is trained any more."""
    same: Any = config  # bytes follow from `scheme` and `keep`, which both have
    return awq.predict(same, work, mesh)


def search(
    config: Config,
    model: Any,
    samples: Samples | None,
    state: Path | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Table | None:
    """The scales for a decoder or encoder and samples of what it will read; None where nothing is to be calibrated.

    `state` is not used: what would be kept is quicker made again. `told` hears passes over the samples done, and in all.
    Raises UserError for samples that are missing, and as `compress.int8_model.calibrate` does.
    """
    if not config.needs_samples:
        return None
    from burnish.compress.int8_model import calibrate

    if samples is None:
        raise UserError(
            "techniques.int8: ranges of activations come from samples of text; activations=dynamic smooth=off needs none"
        )
    return calibrate(
        model, samples, config.model_dump(mode="json"), config.strengths, told or (lambda done, total: None)
    )


def apply(config: Config, trainable: Any, mesh: Mesh, table: Table | None = None) -> Any:
    """Put integers in the place of the matrices of a model, or of a trainable's; `table` is what `search` gave.

    Raises UserError for a table of another model or other settings, and for none where one is needed.
    """
    from burnish.compress.fingerprint import model_fingerprint
    from burnish.compress.int8_model import compress_model

    if config.needs_samples and table is None:
        raise UserError("techniques.int8: no table of scales; search for one, or use activations=dynamic smooth=off")
    for model in [part.model for part in trainable.parts] if hasattr(trainable, "parts") else [trainable]:
        if table is not None:
            table.check(model_fingerprint(model), config.model_dump(mode="json"))
        compress_model(model, config.scheme, config.keep, table)
    return trainable
