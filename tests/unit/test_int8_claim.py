"""The claim of INT8 holds, and a break of what it is about is seen."""

from __future__ import annotations

import pytest
import torch

from burnish.compress.histogram import Histogram
from burnish.prove import int8


def test_the_claim_holds() -> None:
    verdict = int8.measure()
    assert verdict.holds, verdict.measured


@pytest.mark.sabotage
def test_sabotage_ranges_that_know_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """One range for all, whatever is read."""
    true = Histogram.add
    monkeypatch.setattr(Histogram, "add", lambda self, values: true(self, torch.full_like(values, 8.0)))
    assert not int8.measure().holds
