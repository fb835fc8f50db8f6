"""The runner of a model is the one that was measured to be fastest, and is asked for again without measuring."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.serve.opening import Settings, make_runner
from burnish.serve.runners import choice
from burnish.serve.runners.torch_runner import TorchRunner

CONFIG = ModelConfig(vocab=97, hidden=48, ffn=80, layers=5, heads=6, kv_heads=2, head_dim=8, max_positions=64)


class Slow(TorchRunner):
    def go_on(self, *given):
        time.sleep(0.005)
        return super().go_on(*given)


def test_the_faster_one_is_taken_and_remembered(tmp_path: Path) -> None:
    model, built = Decoder(CONFIG, torch.Generator().manual_seed(0)).eval(), []

    def build(kind: type[TorchRunner]):
        return lambda part: built.append(len(part.layers)) or kind(part, CONFIG)

    builds = {"slow": build(Slow), "quick": build(TorchRunner)}
    for _ in range(2):
        assert choice.fastest(builds, model, CONFIG, 4, tmp_path / "new") == "quick"
    assert built == [choice.LAYERS] * 2
    assert len(model.layers) == CONFIG.layers
    (tmp_path / "new" / choice.FILE).write_text("{")
    assert choice.fastest(builds, model, CONFIG, 4, tmp_path / "new") == "quick"
    assert choice.fastest(builds, model, CONFIG, 5, tmp_path / "new") == "quick"
    assert len(built) == 6


def test_auto_is_one_of_both(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    monkeypatch.setattr(choice, "seconds", lambda runner, tokens: float(not isinstance(runner, TorchRunner)))
    model, before = Decoder(CONFIG, torch.Generator().manual_seed(0)), torch.get_num_threads()
    assert isinstance(make_runner(model, CONFIG, Settings(2**20)), TorchRunner)
    assert torch.get_num_threads() == before
