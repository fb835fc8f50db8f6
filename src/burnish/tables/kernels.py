"""Kernels: which slices of a matrix of few bits the products of servers take."""

from __future__ import annotations

from typing import NamedTuple


class Kernel(NamedTuple):
    """What a server's products ask of the slice of a matrix that one card holds.

    The fast product wants multiples of `outputs` and `inputs`. The slow one takes any inputs and multiples of `slow_outputs`,
    symmetric integers and activations in `slow_dtype` alone. Products of experts want multiples of `hidden` and `ffn`.
    """

    name: str
    outputs: int
    inputs: int
    slow_outputs: int
    slow_dtype: str
    hidden: int
    ffn: int


# vLLM: Marlin, else Exllama (model_executor/layers/quantization: utils/marlin_utils.py, kernels/mixed_precision/exllama.py).
KERNELS: dict[str, Kernel] = {"vllm": Kernel("vLLM", 64, 128, 8, "float16", 128, 64)}
