"""Networks: MONAI's segmentation networks and our detectors built from a recipe's section; the table of kinds is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from burnish.errors import UserError
from burnish.vision.detector import Detector, PlainBackbone
from burnish.vision.efficientnet_lite import EfficientNetLite
from burnish.vision.sections import Network

ACTS = {"relu": "RELU", "leaky-relu": ("LEAKYRELU", {"negative_slope": 0.01}), "prelu": "PRELU"}
GROUPS = 8  # of a group norm


def build(network: Network) -> nn.Module:
    """A network with weights drawn by torch's generator: images [B, C, *spatial] in, scores [B, classes, *spatial] out.

    A detector gives maps as `Detector` does.

    Raises UserError where the channels in or out are not known yet, and for settings that a kind does not have.
    """
    if not network.in_channels or not network.out_channels:
        raise UserError("network: in_channels and out_channels are not known yet; give them, or plan with the images")
    return BUILDERS[network.kind](network)


def _made(name: str, **settings: Any) -> nn.Module:
    from monai.networks import nets

    made: nn.Module = getattr(nets, name)(**settings)
    return made


def _norm(network: Network) -> Any:
    return {
        "batch": "BATCH",
        "instance": ("INSTANCE", {"affine": True}),
        "group": ("GROUP", {"num_groups": GROUPS}),
    }[network.norm]


def _plain(network: Network) -> dict[str, Any]:
    """What most kinds take."""
    return {
        "spatial_dims": network.dimensions,
        "in_channels": network.in_channels,
        "out_channels": network.out_channels,
    }


def _unet(network: Network) -> nn.Module:
    return _made(
        "UNet",
        **_plain(network),
        channels=network.channels,
        strides=(2,) * (len(network.channels) - 1),
        num_res_units=network.residual,
        norm=_norm(network),
        act=ACTS[network.act],
    )


def _basic_unet(network: Network) -> nn.Module:
    features = (*network.channels, network.channels[0])
    return _made("BasicUNet", **_plain(network), features=features, norm=_norm(network), act=ACTS[network.act])


def _segresnet(network: Network) -> nn.Module:
    levels = len(network.channels)
    return _made(
        "SegResNet",
        **_plain(network),
        init_filters=network.channels[0],
        blocks_down=(1, *(2,) * (levels - 1)),
        blocks_up=(1,) * (levels - 1),
        norm=_norm(network),
        act=ACTS[network.act],
    )


def _dynunet(network: Network) -> nn.Module:
    levels = len(network.channels)
    return _made(
        "DynUNet",
        **_plain(network),
        kernel_size=[3] * levels,
        strides=[1] + [2] * (levels - 1),
        upsample_kernel_size=[2] * (levels - 1),
        filters=list(network.channels),
        norm_name=_norm(network),
        act_name=ACTS[network.act],
    )


def _attention_unet(network: Network) -> nn.Module:
    if (network.norm, network.act) != ("batch", "relu"):
        raise UserError("network: an attention-unet has batch norm and ReLU; set network.norm=batch network.act=relu")
    channels = network.channels
    return _made("AttentionUnet", **_plain(network), channels=channels, strides=(2,) * (len(channels) - 1))


def _centernet(network: Network) -> nn.Module:
    return Detector(PlainBackbone(network.in_channels, network.channels), network.out_channels, network.head)


def _efficientnet_lite0(network: Network) -> nn.Module:
    return Detector(EfficientNetLite(network.in_channels, network.channels), network.out_channels, network.head)


BUILDERS: dict[str, Callable[[Network], nn.Module]] = {
    "unet": _unet,
    "basic-unet": _basic_unet,
    "segresnet": _segresnet,
    "dynunet": _dynunet,
    "attention-unet": _attention_unet,
    "centernet": _centernet,
    "efficientnet-lite0": _efficientnet_lite0,
}
