"""ONNX files opened in onnxruntime: one run of any graph, and a decoder that keeps what it has read.

Shape letters: B rows, S new positions, P cached positions, L all of them, K key/value heads, D size of one head, V vocabulary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import MissingExtra, UserError

WARNINGS_OFF = 3  # severity of onnxruntime's log: errors alone
Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


def need_onnx(what: str) -> None:
    """Raises MissingExtra naming the first package of the export extra that is not installed."""
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(what, "export", package)


def opened(path: Path, threads: int = 0, accuracy_level: int = 1) -> Any:
    """An onnxruntime session on the CPU; 0 threads: its own choice. Raises UserError for what it cannot load.

    `accuracy_level` of products of 4-bit blocks in standard operators; others say it themselves.
    """
    need_onnx(f"{path}: running an ONNX file")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, WARNINGS_OFF
    # Standard operators of 4-bit blocks become its own, which by its default round their inputs to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(accuracy_level))
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds have no common base
        said = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: onnxruntime {onnxruntime.__version__} does not load it ({said})") from None


@dataclass
class OnnxDecoder:
    """A decoder's session with the keys and values read so far: `read` what is new, get its scores."""

    session: Any
    mask: Ids | None = None  # [B, L]
    kept: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, threads: int = 0) -> OnnxDecoder:
        """Open a decoder's file. Raises UserError as `opened` does, and for a file that is no decoder's."""
        session = opened(path, threads)
        if "past_key_values.0.key" not in [given.name for given in session.get_inputs()]:
            raise UserError(f"{path}: has no past_key_values, so it is no decoder with a cache")
        return cls(session)

    def read(self, ids_BS: Ids, mask_BS: Ids | None = None) -> Floats:
        """Scores [B, S, V] of new positions, 1 in `mask_BS` where a token is real (rows padded on the right)."""
        fresh = np.ones_like(ids_BS) if mask_BS is None else mask_BS
        self.mask = fresh if self.mask is None else np.concatenate([self.mask, fresh], 1)
        past = self.kept or self._nothing(len(ids_BS))
        scores, *present = self.session.run(None, {"input_ids": ids_BS, "attention_mask": self.mask} | dict(past))
        self.kept = dict(zip(past, present, strict=True))
        return np.asarray(scores)

    def greedy(self, prompts_BS: Ids, mask_BS: Ids, count: int) -> Ids:
        """The `count` likeliest tokens after each prompt, one after another: [B, count]. Prompts are padded on the right."""
        scores = self.read(prompts_BS, mask_BS)
        ends = mask_BS.sum(1) - 1
        chosen = scores[np.arange(len(ends)), ends].argmax(-1)[:, None]
        out = [chosen]
        for _ in range(count - 1):
            chosen = self.read(chosen)[:, -1].argmax(-1)[:, None]
            out.append(chosen)
        return np.concatenate(out, 1)

    def _nothing(self, rows: int) -> dict[str, Floats]:
        """Keys and values of no position, by the names of the inputs, in the order of the outputs."""
        found = {given.name: given.shape for given in self.session.get_inputs() if given.name.startswith("past_")}
        return {name: np.zeros((rows, shape[1], 0, shape[3]), np.float32) for name, shape in found.items()}
