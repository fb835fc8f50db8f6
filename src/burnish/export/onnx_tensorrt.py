"""What TensorRT wants beside an ONNX file of 8-bit products: the command that builds an engine, and a calibration cache.

The scales stand in the file as QuantizeLinear and DequantizeLinear ("explicit quantization"), the only way that TensorRT 11 has.
Up to version 10 it also takes a cache: a line that names version and calibrator, then a line a tensor with the bits of its
float32 scale in hexadecimal, where scale = largest magnitude / 127 (IInt8Calibrator::readCalibrationCache).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

import numpy as np

from burnish.errors import UserError
from burnish.export.onnx_graph import Graph

HEADING = "TRT-{version}-{calibrator}"
VERSION, CALIBRATOR = "100300", "EntropyCalibration2"
# Least, usual and most rows, new positions and cached ones that the engine is built for.
SIZES = (("min", 1, 1, 0), ("opt", 8, 128, 0), ("max", 32, 512, 512))
_LINE = re.compile(r"(.+): ([0-9a-f]{1,8})")


def side_files(graph: Graph, file: str) -> dict[str, str]:
    """File name -> content for a graph with stored scales of inputs; nothing for any other."""
    scales = input_scales(graph)
    if not scales or graph.contrib:
        return {}
    stem = PurePath(file).stem
    return {
        f"{stem}.trtexec.sh": f"#!/bin/sh\n{trtexec(graph, file)}\n",
        f"{stem}.calibration.cache": calibration_cache(scales),
    }


def input_scales(graph: Graph) -> dict[str, float]:
    """Value of the graph -> the scale that it is rounded with."""
    kept = graph.kept
    quantized = [node for node in graph.nodes if node.op_type == "QuantizeLinear"]
    return {node.input[0]: float(kept[node.input[1]].data.reshape(())) for node in quantized if node.input[1] in kept}


def trtexec(graph: Graph, file: str) -> str:
    """The command that builds an engine of the file, with the sizes of its free dimensions."""
    words = ["trtexec", f"--onnx={file}", f"--saveEngine={PurePath(file).stem}.engine", "--stronglyTyped"]
    for option, rows, length, past in SIZES:
        sizes = {"batch": rows, "sequence": length, "total": length + past, "past": past}
        shapes = []
        for given in graph.inputs:
            own = [d.dim_value or sizes[d.dim_param] for d in given.type.tensor_type.shape.dim]
            shapes.append(f"{given.name}:{'x'.join(map(str, own))}")
        words.append(f"--{option}Shapes={','.join(shapes)}")
    return " ".join(words)


def calibration_cache(scales: Mapping[str, float], version: str = VERSION, calibrator: str = CALIBRATOR) -> str:
    """The cache of TensorRT up to 10. `version`: the number of the TensorRT that reads it, which refuses any other."""
    lines = [HEADING.format(version=version, calibrator=calibrator)]
    for name, scale in scales.items():
        if not (np.isfinite(scale) and scale > 0):
            raise UserError(f"{name}: scale {scale}: a calibration cache holds positive, finite scales")
        lines.append(f"{name}: {int(np.float32(scale).view(np.uint32)):x}")
    return "\n".join(lines) + "\n"


def read_cache(text: str, where: str) -> dict[str, float]:
    """Tensor -> scale of a calibration cache. Raises UserError naming the line that is none of one."""
    heading, *lines = text.splitlines() or [""]
    if not (heading.startswith("TRT-") or heading == "1"):
        raise UserError(f"{where}: line 1 is {heading!r}; a calibration cache begins with TRT-VERSION-CALIBRATOR")
    found = {}
    for number, line in enumerate(lines, 2):
        matched = _LINE.fullmatch(line)
        if matched is None:
            raise UserError(
                f"{where}: line {number} is {line[:60]!r}; a line is NAME: the 32 bits of its scale in hexadecimal"
            )
        found[matched[1]] = float(np.uint32(int(matched[2], 16)).view(np.float32))
    return found
