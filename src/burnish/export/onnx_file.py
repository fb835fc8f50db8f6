"""ONNX files: a graph written whole or not at all, its weights inside or, where they are many, in a file beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from burnish.errors import UserError
from burnish.export.onnx_graph import CONTRIB, ONNX_TYPES, Graph
from burnish.onnx_layout import PAGE, SMALL
from burnish.records import replaced

INSIDE = 2**30  # bytes of weights that a file holds itself; protobuf ends at twice this
IR_VERSION = 10


@contextlib.contextmanager
def writing(graph: Graph, path: Path, inside: int = INSIDE) -> Iterator[Path]:
    """Write a graph under a name of its own and give that; on a clean exit it becomes `path`, otherwise it is removed.

    More than `inside` bytes of weights go to `path`.data. Raises UserError for a place that cannot be written.
    """
    target = replaced(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.writing")
    place = fresh / target.name
    try:
        fresh.mkdir(parents=True, exist_ok=True)
        write_graph(graph, place, inside)
        yield place
        for file in sorted(fresh.iterdir(), reverse=True):  # the weights before the graph that names them
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
            os.replace(file, target.with_name(file.name))
        if not large(graph, inside):
            data_file(target).unlink(missing_ok=True)  # of an earlier, larger file of this name
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); choose a writable folder") from None
    finally:
        with contextlib.suppress(OSError):
            for left in fresh.iterdir():
                left.unlink()
            fresh.rmdir()


def data_file(path: Path) -> Path:
    """Where the weights of a large file lie."""
    return path.with_name(f"{path.name}.data")


def large(graph: Graph, inside: int = INSIDE) -> bool:
    """Whether a graph's weights lie beside its file."""
    return sum(kept.stored.bytes for kept in graph.kept.values()) > inside


def write_graph(graph: Graph, path: Path, inside: int = INSIDE) -> None:
    """Write a graph to `path` as it comes, in several steps, and have it checked. Raises OSError."""
    import onnx
    from onnx import helper

    if large(graph, inside):
        with data_file(path).open("wb") as file:
            tensors = [_beside(name, graph, file) for name in sorted(graph.kept)]
    else:
        tensors = [_inside(name, graph) for name in graph.kept]
    made = helper.make_graph(graph.nodes, graph.name, graph.inputs, graph.outputs, tensors)
    domains = [helper.make_opsetid("", graph.opset)] + ([helper.make_opsetid(CONTRIB, 1)] if graph.contrib else [])
    model = helper.make_model(made, opset_imports=domains, ir_version=IR_VERSION, producer_name="burnish")
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path))


def _tensor(name: str, graph: Graph) -> Any:
    from onnx import TensorProto

    stored = graph.kept[name].stored
    return TensorProto(name=name, dims=stored.shape, data_type=TensorProto.DataType.Value(ONNX_TYPES[stored.dtype]))


def _inside(name: str, graph: Graph) -> Any:
    tensor = _tensor(name, graph)
    tensor.raw_data = graph.kept[name].data.tobytes()
    return tensor


def _beside(name: str, graph: Graph, file: BinaryIO) -> Any:
    from onnx import TensorProto

    kept = graph.kept[name]
    if kept.stored.bytes <= SMALL:
        return _inside(name, graph)
    at = -(-file.tell() // PAGE) * PAGE
    file.seek(at)
    kept.data.tofile(file)
    tensor = _tensor(name, graph)
    tensor.data_location = TensorProto.EXTERNAL
    where = {"location": Path(file.name).name, "offset": str(at), "length": str(kept.stored.bytes)}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=value)
    return tensor
