"""The law for mixtures: whatever parts are kept as they were, bytes of files and in memory are those predicted from sizes."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from awq_models import config_of
from awq_models import decoder as four_bits
from burnish.compress import costs, written
from burnish.compress.passes import Compressed, as_stored, described
from burnish.compress.sensitivity import Exchange, mixed, parts_of
from burnish.mesh import Mesh
from burnish.techniques import awq, int8
from int8_models import decoder as eight_bits

AWQ = {
    "groups": {"group": 32},
    "zero points": {"group": 32, "symmetric": False, "dtype": "bfloat16"},
    "some kept": {"group": -1, "keep": ("mlp.down", "layers.1.attention.o")},
}
DYNAMIC = int8.Config(activations="dynamic", smooth="off")
CASES = [
    *((f"{name}, {kind}", "awq") for name in ("llama", "qwen2", "mixtral", "qwen3 moe") for kind in AWQ),
    ("decoder", "int8"),
]
KEPT = [(), (0,), (1, 2), (3,), (0, 1, 2, 3)]


def made_of(case: str, technique: str) -> Compressed:
    if technique == "awq":
        name, kind = case.split(", ", 1)
        own, sizes = four_bits(name), config_of(name)
        config: Any = awq.Config.model_validate({"method": "rtn"} | AWQ[kind])
        module: Any = awq
    else:
        own, sizes = eight_bits()
        config, module = DYNAMIC, int8
    model = as_stored(module.apply(config, copy.deepcopy(own), Mesh()), config.dtype)
    work = module.predict(config, described(sizes, 8), Mesh())
    return Compressed(
        model, as_stored(copy.deepcopy(own), config.dtype), sizes, {}, config.scheme, config.keep, config.dtype, work
    )


def exchanged(made: Compressed, numbers: tuple[int, ...]) -> tuple[Exchange, ...]:
    parts = parts_of(made.own, made.model)
    assert len(parts) == 4
    return tuple(parts[number] for number in numbers)


def differ(case: str, technique: str, numbers: tuple[int, ...], folder: Path) -> list[str]:
    """What is not as predicted."""
    made = made_of(case, technique)
    parts = exchanged(made, numbers)
    kept = written.kept_in(made, parts)
    model = mixed(made.model, made.own, parts)
    checkpoint = SimpleNamespace(tokenizer=None, config={}, files=(), where="here")
    done = Compressed(model, made.own, made.config, {}, made.scheme, made.keep, made.dtype, made.work, parts)
    written._save(SimpleNamespace(checkpoint=checkpoint), done, folder)  # type: ignore[arg-type]
    files = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    found = {
        "files": (written.predicted_bytes(done, kept), files),
        "memory": (written.predicted_memory(done, kept), costs.held_bytes(model)),
    }
    return [what for what, (predicted, measured) in found.items() if predicted != measured]


@pytest.mark.parametrize("numbers", KEPT, ids=str)
@pytest.mark.parametrize(("case", "technique"), CASES)
def test_bytes_of_a_mixture(case: str, technique: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    assert differ(case, technique, numbers, tmp_path / "m") == []


@pytest.mark.sabotage
@pytest.mark.parametrize("case", ["mixtral, groups", "llama, zero points"])
def test_sabotage_a_kept_part_that_is_not_counted_is_noticed(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert differ(case, "awq", (3,), tmp_path / "right") == []
    right = written.kept_matrices
    monkeypatch.setattr(written, "kept_matrices", lambda own, kept, kinds: right(own, kept, torch.nn.Identity))
    assert differ(case, "awq", (3,), tmp_path / "wrong") == ["files", "memory"]
