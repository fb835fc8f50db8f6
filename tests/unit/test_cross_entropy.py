"""The chunked cross entropy against torch's own on full logits: values, gradients, ignored labels, bytes and FLOPs."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from burnish.ops.cross_entropy import chunked_cross_entropy

T, H, V = 13, 6, 23


def _inputs(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(T, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(0, V, (T,), generator=generator)
    labels[[0, 5, 12]] = -100
    return hidden, weight, labels


def _reference(hidden, weight, labels):
    hidden, weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    loss = F.cross_entropy(hidden @ weight.t(), labels, ignore_index=-100, reduction="sum")
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
def test_loss_and_gradients_equal_full_logits_in_float64(chunk):
    hidden, weight, labels = _inputs()
    loss = chunked_cross_entropy(hidden, weight, labels, chunk)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    for ours, theirs in zip((loss, *gradients), _reference(hidden, weight, labels), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert loss.item() > 20  # ten labels of about log(23) nats and more


def test_gradcheck_with_an_upstream_gradient_that_is_not_one():
    hidden, weight, labels = _inputs()
    assert torch.autograd.gradcheck(lambda h, w: 0.37 * chunked_cross_entropy(h, w, labels, 4), (hidden, weight))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_lower_precisions_stay_near_float64_and_return_float32(dtype, bound):
    hidden, weight, labels = _inputs(dtype)
    loss = chunked_cross_entropy(hidden, weight, labels, 5)
    loss.backward()
    assert loss.dtype == torch.float32
    reference, for_hidden, for_weight = _reference(hidden, weight, labels)
    assert abs(loss.item() - reference.item()) <= bound * reference.item()
    for gradient, expected in ((hidden.grad, for_hidden), (weight.grad, for_weight)):
        assert gradient.dtype == dtype
        assert (gradient.double() - expected).norm() <= bound * expected.norm()


def test_half_gradients_of_the_head_add_up_in_float32():
    """Many chunks that each add a little to one large sum: adding them in bfloat16 would lose them all."""
    rows = 2048
    hidden = torch.full((rows, 1), 1.0, dtype=torch.bfloat16)
    weight = torch.zeros(4, 1, dtype=torch.bfloat16, requires_grad=True)
    chunked_cross_entropy(hidden, weight, torch.zeros(rows, dtype=torch.long), chunk=1).backward()
    assert weight.grad.flatten().tolist() == [-1536.0, 512.0, 512.0, 512.0]


def test_extreme_logits_neither_overflow_nor_vanish():
    hidden = torch.tensor([[1.0], [1.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [2000.0], [-2000.0]], requires_grad=True)
    loss = chunked_cross_entropy(hidden, weight, torch.tensor([2, 1]))
    loss.backward()
    assert loss.item() == 4000.0
    assert hidden.grad.flatten().tolist() == [4000.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flt_026_window_without_labels_is_exactly_zero(dtype):
    hidden, weight, labels = _inputs(dtype)
    loss = chunked_cross_entropy(hidden, weight, torch.full_like(labels, -100), 4)
    loss.backward()
    assert loss.item() == 0.0
    assert hidden.grad.count_nonzero() == 0
    assert weight.grad.count_nonzero() == 0


def test_no_rows_at_all_is_zero_too():
    hidden, weight, labels = _inputs()
    loss = chunked_cross_entropy(hidden[:0], weight, labels[:0])
    loss.backward()
    assert loss.item() == 0.0
    assert weight.grad.count_nonzero() == 0


def test_tied_weight_gets_the_gradient_of_the_head_added_to_that_of_the_embedding():
    _, weight, labels = _inputs()
    ids = torch.arange(T) % V
    mix = torch.linspace(-1, 1, H * H, dtype=torch.float64).view(H, H)

    def hidden():
        return F.embedding(ids, weight) @ mix

    chunked_cross_entropy(hidden(), weight, labels, 4).backward()
    tied, weight.grad = weight.grad, None
    F.cross_entropy(hidden() @ weight.t(), labels, reduction="sum").backward()
    torch.testing.assert_close(tied, weight.grad, rtol=1e-12, atol=1e-12)
    chunked_cross_entropy(hidden(), weight, labels, 4).backward()
    torch.testing.assert_close(weight.grad, 2 * tied, rtol=1e-12, atol=1e-12)  # a second micro batch accumulates


def test_only_the_gradients_asked_for_are_made():
    hidden, weight, labels = _inputs()
    chunked_cross_entropy(hidden, weight.detach(), labels).backward()
    assert hidden.grad is not None
    chunked_cross_entropy(hidden.detach(), weight, labels).backward()
    torch.testing.assert_close(weight.grad, _reference(hidden, weight, labels)[2], rtol=1e-12, atol=1e-12)


def _flops(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_flops_and_saved_bytes_are_the_formulas_of_the_docstring():
    hidden, weight, labels = _inputs(torch.float32)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.nbytes) or t, lambda t: t):
        assert _flops(lambda: chunked_cross_entropy(hidden, weight, labels, 4).backward()) == 6 * T * V * H
    assert sum(saved) == 4 * T * H + 4 * V * H
    with torch.no_grad():
        assert _flops(lambda: chunked_cross_entropy(hidden, weight, labels, 4)) == 2 * T * V * H


def test_no_tensor_is_larger_than_one_chunk_of_logits():
    rows, vocab = 64, 4096
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(vocab, 8, requires_grad=True)
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            sizes.append(result.untyped_storage().nbytes() if isinstance(result, torch.Tensor) else 0)
            return result

    with Sizes():
        chunked_cross_entropy(hidden, weight, torch.zeros(rows, dtype=torch.long), chunk=8).backward()
    assert max(sizes) == max(4 * 8 * vocab, 4 * vocab * 8)
    assert len(sizes) > 8


@pytest.mark.parametrize(
    ("hidden", "weight", "labels", "chunk", "message"),
    [
        ((3, 4), (5, 6), (3,), 8, r"\[T, H\] and \[V, H\]"),
        ((3, 4), (5, 4), (2,), 8, r"labels \(2,\) must be \[3\]"),
        ((3, 4), (5, 4), (3,), 0, "chunk is 0"),
    ],
)
def test_shapes_that_do_not_fit_are_named(hidden, weight, labels, chunk, message):
    with pytest.raises(ValueError, match=message):
        chunked_cross_entropy(torch.zeros(hidden), torch.zeros(weight), torch.zeros(labels, dtype=torch.long), chunk)


@pytest.mark.parametrize("label", [V, -1])
def test_label_outside_the_vocabulary_is_refused(label):
    hidden, weight, labels = _inputs()
    labels[3] = label
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        chunked_cross_entropy(hidden, weight, labels)
