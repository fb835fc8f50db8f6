"""Cross entropy of a language-model head in chunks of rows, so that the logits of a whole batch never exist.

The gradients of the hidden states and of the head are made chunk by chunk while the logits are there, in the forward
pass (Hsu et al. 2024, "Liger Kernel", arXiv 2410.10989, section 3.2; Wijmans et al. 2024, "Cut your losses", arXiv
2411.09009, has the idea). With C = min(chunk, T) rows a chunk, e bytes an element, and a the bytes of the accumulation
type (4 for halves and float32):

    FLOPs            6 T V H with both gradients, all of them in forward (2 T V H without gradients)
    saved            e T H + e V H bytes for backward: the two gradients
    transient        a C V bytes of logits, + e C V for halves, + a V H for a half-precision head

Legend: T rows, H hidden size, V vocabulary, C rows of a chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.ops.vocabulary import Vocabulary

IGNORED = -100  # the same label as torch.nn.functional.cross_entropy ignores
CHUNK = 512  # rows: enough for a matrix product at full rate, few enough that logits stay small beside a model


def chunked_cross_entropy(
    hidden_TH: Tensor, weight_VH: Tensor, labels_T: Tensor, chunk: int = CHUNK, vocabulary: Vocabulary | None = None
) -> Tensor:
    """Sum over labels other than -100 of -log softmax(hidden @ weight.T)[label], in nats; a scalar.

    Half-precision inputs multiply in their own type and accumulate loss, softmax and gradients in float32; the result
    is float32 (float64 for float64 inputs). Without a label to count, the loss and its gradients are exactly 0.
    `vocabulary`: the head has only this rank's words, hidden states are [B, S, H], and every rank gets the whole loss.
    Raises ValueError for shapes that do not fit, IndexError or RuntimeError for a label outside the vocabulary.
    """
    fits = hidden_TH.dim() == weight_VH.dim() == 2 and hidden_TH.shape[1] == weight_VH.shape[1]
    if vocabulary is None and not fits:
        raise ValueError(
            f"hidden {tuple(hidden_TH.shape)} and weight {tuple(weight_VH.shape)} must be [T, H] and [V, H]"
        )
    if vocabulary is None and labels_T.shape != hidden_TH.shape[:1]:
        raise ValueError(f"labels {tuple(labels_T.shape)} must be [{hidden_TH.shape[0]}], one a row of hidden")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; it counts rows, 1 and more work")
    if torch.is_grad_enabled() and (hidden_TH.requires_grad or weight_VH.requires_grad):
        return _ChunkedCrossEntropy.apply(hidden_TH, weight_VH, labels_T, chunk, vocabulary)
    whole_TH = hidden_TH if vocabulary is None else vocabulary.whole(hidden_TH)
    return _sum_of_chunks(whole_TH, weight_VH, labels_T, chunk, Wanted(None, None, vocabulary))


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss forward, with the two gradients for an upstream gradient of 1 saved for backward."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight_VH: Tensor, labels_T: Tensor, chunk: int, vocabulary: Vocabulary | None
    ) -> Tensor:
        hidden_TH = given if vocabulary is None else vocabulary.whole(given)
        wide = _accumulation_type(hidden_TH.dtype)
        for_hidden = torch.empty_like(hidden_TH) if ctx.needs_input_grad[0] else None
        for_weight = torch.zeros_like(weight_VH, dtype=wide) if ctx.needs_input_grad[1] else None
        loss = _sum_of_chunks(hidden_TH, weight_VH, labels_T, chunk, Wanted(for_hidden, for_weight, vocabulary))
        if vocabulary is not None and for_hidden is not None:
            for_hidden = vocabulary.summed(for_hidden, given)
        ctx.save_for_backward(for_hidden, None if for_weight is None else for_weight.to(weight_VH.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        for_hidden, for_weight = ctx.saved_tensors
        # A copy of the head's gradient would stand at the very peak of a step, so the common case must not make one.
        if upstream.device.type == "cpu" and upstream.item() == 1.0:
            return for_hidden, for_weight, None, None, None
        scaled = [None if g is None else g * upstream.to(g.dtype) for g in (for_hidden, for_weight)]
        return scaled[0], scaled[1], None, None, None


class Wanted(NamedTuple):
    """Gradients to fill (`hidden`) or to add to (`weight`), where they are asked for, and how the words are divided."""

    hidden: Tensor | None
    weight: Tensor | None
    vocabulary: Vocabulary | None


def _sum_of_chunks(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    labels_T: Tensor,
    chunk: int,
    wanted: Wanted,
) -> Tensor:
    """The loss; makes the gradients that are wanted. One buffer holds all logits in turn."""
    for_hidden_TH, for_weight_VH, vocabulary = wanted
    wide = _accumulation_type(hidden_TH.dtype)
    rows = min(chunk, hidden_TH.shape[0])
    buffer_CV = hidden_TH.new_empty((rows, weight_VH.shape[0]), dtype=wide)
    halves_CV = None if wide == hidden_TH.dtype else torch.empty_like(buffer_CV, dtype=hidden_TH.dtype)
    loss = hidden_TH.new_zeros((), dtype=wide)
    for start in range(0, hidden_TH.shape[0], chunk):
        part = slice(start, min(start + chunk, hidden_TH.shape[0]))
        hidden_CH, labels_C = hidden_TH[part], labels_T[part]
        logits_CV = buffer_CV[: len(labels_C)]
        narrow_CV = logits_CV if halves_CV is None else halves_CV[: len(labels_C)]
        torch.mm(hidden_CH, weight_VH.t(), out=narrow_CV)
        if halves_CV is not None:
            logits_CV.copy_(narrow_CV)
        wants_gradient = for_hidden_TH is not None or for_weight_VH is not None
        loss += _loss_then_gradient_(logits_CV, labels_C, wants_gradient, vocabulary)
        if wants_gradient and halves_CV is not None:
            narrow_CV.copy_(logits_CV)
        if for_hidden_TH is not None:
            torch.mm(narrow_CV, weight_VH, out=for_hidden_TH[part])
        if for_weight_VH is not None:
            _add_product_(for_weight_VH, narrow_CV, hidden_CH)
    return loss


def _loss_then_gradient_(
    logits_CV: Tensor, labels_C: Tensor, wants_gradient: bool, vocabulary: Vocabulary | None
) -> Tensor:
    """Sum of the rows' losses; `logits_CV` becomes softmax - one_hot, with rows that are ignored all zero."""
    counted_C = own_C = labels_C != IGNORED
    if vocabulary is None:
        index_C1 = labels_C.where(counted_C, 0).unsqueeze(1)
        highest_C1 = logits_CV.amax(dim=1, keepdim=True)
    else:
        own_C, index_C = vocabulary.own(labels_C, logits_CV.shape[1])
        index_C1 = index_C.unsqueeze(1)
        highest_C1 = vocabulary.highest(logits_CV.amax(dim=1, keepdim=True))
    at_label_C1 = (logits_CV.gather(1, index_C1) - highest_C1) * own_C.unsqueeze(1)
    sums_C1 = logits_CV.sub_(highest_C1).exp_().sum(dim=1, keepdim=True)
    if vocabulary is not None:
        sums_C1, at_label_C1 = vocabulary.sums(sums_C1, at_label_C1)
    losses_C1 = (sums_C1.log() - at_label_C1) * counted_C.unsqueeze(1)
    if wants_gradient:
        logits_CV.mul_(counted_C.unsqueeze(1) / sums_C1)
        logits_CV.scatter_add_(1, index_C1, -own_C.unsqueeze(1).to(logits_CV.dtype))
    return losses_C1.sum()


def _add_product_(total_VH: Tensor, left_CV: Tensor, right_CH: Tensor) -> None:
    """total += left.T @ right, in the type of `total`."""
    if total_VH.dtype == right_CH.dtype:
        torch.addmm(total_VH, left_CV.t(), right_CH, out=total_VH)
    else:
        total_VH.add_(torch.mm(left_CV.t(), right_CH))


def _accumulation_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
