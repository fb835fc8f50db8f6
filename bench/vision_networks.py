"""Every network offered, with every norm and activation, in 2-D and 3-D: bench/results/vision_networks.json.

Of each: the law at another size, half of the channels cut, ONNX beside torch, 8 bits and how they race.
Both exporters of PyTorch on one network. With --page the table of docs/networks.md is written from what was found.
"""

from __future__ import annotations

import copy
import itertools
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from burnish.errors import UserError
from burnish.vision.kept_channels import apply
from burnish.vision.networks import build
from burnish.vision.observed_network import observe
from burnish.vision.onnx_int8 import Settings, quantize
from burnish.vision.onnx_network import EXPORTERS, export
from burnish.vision.operators import operators_of
from burnish.vision.prune import Target, choose
from burnish.vision.sections import Network
from burnish.vision.trace import predict
from counted import ROOT
from record import record

KINDS, NORMS = ("unet", "basic-unet", "segresnet", "dynunet", "attention-unet"), ("batch", "instance", "group")
ACTS, SIDES, OTHER = ("relu", "leaky-relu", "prelu"), (32, 32, 32), (48, 32, 16)
WIDTHS = {"basic-unet": (8, 8, 16, 16, 32), "segresnet": (16, 32)}
SAMPLES = 4
PAGE, MARK = ROOT / "docs" / "networks.md", "<!-- written by bench/vision_networks.py -->\n"


def networks() -> list[Network]:
    """Every combination that a recipe may name."""
    found = []
    for kind, norm, act, dims in itertools.product(KINDS, NORMS, ACTS, (2, 3)):
        if kind == "attention-unet" and (norm, act) != ("batch", "relu"):
            continue
        settings = {"kind": kind, "norm": norm, "act": act, "dimensions": dims, "in_channels": 1, "out_channels": 3}
        found.append(
            Network(
                **settings,
                channels=WIDTHS.get(kind, (8, 16, 32)),
                residual=2 if kind == "unet" and norm != "group" else 0,
            )
        )
    return found


def built(section: Network) -> nn.Module:
    """With statistics of something."""
    torch.manual_seed(0)
    model = build(section)
    with torch.no_grad():
        model.train()(torch.randn(2, 1, *SIDES[: section.dimensions]))
    return model.eval()


def law(section: Network) -> str:
    with torch.device("meta"):
        bare = build(section)
    dims = section.dimensions
    predicted = predict(operators_of(bare, (2, 1, *SIDES[:dims])), (3, 1, *OTHER[:dims]))
    return "exact" if predicted == observe(built(section), (3, 1, *OTHER[:dims])) else "differs"


def pruned(section: Network) -> str:
    """The share of parameters that goes, once the cut network computes and learns."""
    model = built(section)
    cut = apply(copy.deepcopy(model), choose(model, (1, 1, *SIDES[: section.dimensions]), Target(0.5)))
    scores = cut.train()(torch.randn(2, 1, *OTHER[: section.dimensions]))
    scores.square().mean().backward()
    before, after = (sum(p.numel() for p in one.parameters()) for one in (model, cut))
    return f"-{1 - after / before:.0%}"


def deployed(section: Network, folder: Path) -> tuple[float, str, float]:
    """Largest difference of ONNX, 8-bit share of pixels labelled as in float with bytes, and the race."""
    sizes = (1, 1, *SIDES[: section.dimensions])
    made = export(built(section), sizes, folder / "float.onnx")
    draw = torch.Generator().manual_seed(1)
    samples = [torch.randn(2, *sizes[1:], generator=draw).numpy() for _ in range(SAMPLES)]
    small = quantize(folder / "float.onnx", folder / "int8.onnx", samples, Settings(max_drop=0.05, threads=1))
    said = f"{small.score:.1%} of pixels alike" + (f", {len(small.kept)} kept in float" if small.kept else "")
    return made.difference, said if small.path else "float kept", small.race.ratio if small.race else 0.0


def exporters() -> dict[str, float]:
    """Seconds of each exporter for one U-Net."""
    model, found = built(networks()[0]), {}
    for name, write in EXPORTERS.items():
        with TemporaryDirectory() as scratch:
            began = time.perf_counter()
            write(model, torch.randn(2, 1, 32, 32), Path(scratch) / "net.onnx")
            found[name] = time.perf_counter() - began
    return found


def row(section: Network) -> dict[str, object]:
    """One network: what works, or the reason why not."""
    found: dict[str, object] = {
        "network": f"{section.kind} {section.dimensions}-D",
        "norm": section.norm,
        "act": section.act,
        "law": law(section),
    }
    try:
        found["prune"] = pruned(section)
    except UserError as error:
        found["prune"] = f"refused: {error}"
    with TemporaryDirectory() as scratch:
        try:
            found["onnx"], found["int8"], found["speed"] = deployed(section, Path(scratch))
        except UserError as error:
            found["onnx"], found["int8"], found["speed"] = 1.0, f"refused: {error}", 0.0
    return found


def write_page(rows: list[dict[str, object]]) -> None:
    """The table of the page, in place of the one that stands there."""
    lines = [
        "| network | norm | activation | law at another size | half of the channels | ONNX | 8 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        cells = (one["network"], one["norm"], one["act"], one["law"], one["prune"], f"{one['onnx']:.0e}", one["int8"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    before = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    PAGE.write_text(before + MARK + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [row(section) for section in networks()]
    seconds = exporters()
    values = {
        "networks": len(rows),
        "law_different": sum(one["law"] != "exact" for one in rows),
        "prune_refused": sum(str(one["prune"]).startswith("refused") for one in rows),
        "onnx_difference": max(float(str(one["onnx"])) for one in rows),
        "int8_refused": sum(not str(one["int8"]).endswith(("alike", "in float")) for one in rows),
        "int8_faster": sum(float(str(one["speed"])) > 1 for one in rows),
        "exporter_run_seconds": seconds["run"],
        "exporter_program_seconds": seconds["program"],
        "rows": rows,
    }
    print(record("vision_networks", values))
    if "--page" in sys.argv:
        write_page(rows)


if __name__ == "__main__":
    main()
