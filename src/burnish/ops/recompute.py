"""Recompute: a module whose forward is run again in backward, keeping its input and, if asked, its products' results.

Torch's non-reentrant checkpoint does the work. It keeps the tensors it is given, not those inside an argument, so every
tensor of nested arguments is handed over by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from burnish.ops.flash_attention import KEPT
from burnish.ops.fp8_product import FORWARD_PRODUCT

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    *KEPT,
    FORWARD_PRODUCT,
}


def recomputed(module: nn.Module, keep_products: bool = False) -> None:
    """Make `module` run its forward again in backward. With `keep_products`, what matrix products and attention gave
    stays, and only what lies between is made again."""
    forward = module.forward
    run = partial(_keeping, _made_again(module)) if keep_products else _plain

    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        leaves, form = tree_flatten((args, kwargs))

        def unfolded(*given: Any) -> Any:
            given_args, given_kwargs = tree_unflatten(given, form)
            return forward(*given_args, **given_kwargs)

        return run(unfolded, leaves)

    module.forward = again  # type: ignore[method-assign]


def _plain(forward: Callable[..., Any], leaves: list[Any]) -> Any:
    return checkpoint(forward, *leaves, use_reentrant=False)


def _keeping(again: list[tuple[nn.Module, str]], forward: Callable[..., Any], leaves: list[Any]) -> Any:
    """Checkpoint that caches the outputs of `PRODUCTS`, but for those with a matrix named in `again`.

    Torch's cache is not made of saved tensors; passing them through `_Holding` makes them visible to whoever watches what is
    saved, and costs nothing, for the storage is the same.
    """
    kept: list[Tensor] = []

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op not in PRODUCTS or any(_same_storage(arg, getattr(part, name)) for part, name in again for arg in args):
            return CheckpointPolicy.PREFER_RECOMPUTE
        kept.extend(tree_flatten(context.op_output)[0])
        return CheckpointPolicy.MUST_SAVE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    out = checkpoint(forward, *leaves, use_reentrant=False, context_fn=contexts)
    flat, form = tree_flatten(out)
    flat[0] = _Holding.apply(flat[0], *(tensor.detach() for tensor in kept if isinstance(tensor, Tensor)))
    kept.clear()
    return tree_unflatten(flat, form)


class _Holding(torch.autograd.Function):
    """Identity of its first argument that saves the others until its backward, the first of the layer's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (grad, *(None for _ in ctx.saved_tensors))


def _made_again(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """The matrices, as parts and names of their parameters, whose products are made again: the last one's, because as a rule
    nothing in backward needs it, and those that a part calls narrow, which cost less than what they give takes."""
    last = _last_product(module)
    narrow = [(part, name) for part in module.modules() for name in getattr(part, "narrow", ())]
    return narrow if last is None else [(last, "weight"), *narrow]


def _last_product(module: nn.Module) -> nn.Module | None:
    """The part of a layer that makes its last product, known by its matrix, which may be another tensor when it runs; None
    where a norm stands behind it, whose backward needs the result."""
    parts = [(part, getattr(part, "weight", None)) for part in module.modules()]
    weighted = [(part, weight) for part, weight in parts if isinstance(weight, Tensor)]
    return weighted[-1][0] if weighted and weighted[-1][1].dim() > 1 else None


def _same_storage(value: Any, weight: Tensor) -> bool:
    return isinstance(value, Tensor) and value.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
