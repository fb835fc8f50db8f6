"""Tensor parallelism: split the matrices of every layer over `tp` ranks; with sequence parallelism the tokens between too.

Idea    Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3: the first matrix of a pair is split by columns,
        the second by rows, so that one sum over ranks a pair and direction is enough; heads and vocabulary likewise.
        Korthikanti et al. 2022 (arXiv 2205.05198), section 4: the sum as reduce-scatter and all-gather of tokens, so that
        norms, residual sums and what they keep are split as well, at the same bytes.
Gain    parameters, products and what products keep: 1/tp. Norms and layer inputs too with sequence parallelism.
Price   four all-reduces of a layer's input a layer and micro batch, two in forward and two in backward, on the slowest link
        of the `tp` ranks; none of them hides behind much. Two more for the vocabulary, with three numbers a token. Inputs
        of products that are kept as parts are gathered once more in backward (Korthikanti et al., section 4.2.2).
Limits  heads must divide; key-value heads fewer than tp are repeated. Beyond a node's fast links it stops to pay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.decoder_parts import CHUNK
from burnish.errors import UserError
from burnish.mesh import Mesh, N, pick
from burnish.section import Section
from burnish.techniques.precision import vector_bytes
from burnish.work import BACKWARD, COLUMN, EXPERT, FORWARD, HEADS, ROW, TOKENS, WHOLE, Block, Comm, Op, Saved, Work

if TYPE_CHECKING:
    from burnish.train.step import Trainable

OPENS = ("q", "up", "mixer_in", "shared_up")  # first matrices of pairs
CLOSES = ("o", "down", "mixer_out", "shared_down")
LOSS_SUMS = 3  # numbers a token that the loss sums over a split vocabulary: the maximum; exponentials and label's logit


class Config(Section):
    """`sequence`: split the tokens between the products as well."""

    sequence: bool = True


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError when heads, the feed-forward part or tokens do not divide by tp (single mapping only)."""
    for block in work.blocks:
        if "q" not in (ops := {op.name: op for op in block.ops}):
            continue
        heads, kv_heads = (int(count) for count in heads_of(block, work))
        width = int(ops["up"].shapes[0][0]) if "up" in ops else 0
        legal = [n for n in range(1, heads + 1) if _splits(n, heads, kv_heads, width)]
        if np.any([n not in legal for n in np.atleast_1d(mesh.tp)]):
            raise UserError(
                f"parallel.tp {mesh.tp} cannot split {heads} query heads, {kv_heads} key-value heads and a feed-forward "
                f"part of {width} evenly; use {_listed(legal)}"
            )
    parts = mesh.tp * mesh.cp
    if config.sequence and np.any(work.tokens % parts):
        raise UserError(
            f"parallel.sequence: {work.tokens} tokens of a micro batch do not divide into {parts} parts (parallel.tp "
            f"{mesh.tp} x cp {mesh.cp}); use a data.seq that does, or parallel.sequence=false"
        )


def _splits(tp: int, heads: int, kv_heads: int, width: int) -> bool:
    """Key-value heads are whole on a rank, or are repeated evenly."""
    return heads % tp == 0 and width % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)


def _listed(legal: list[int]) -> str:
    *others, last = map(str, legal)
    return f"{', '.join(others)} or {last}" if others else last


def heads_of(block: Block, work: Work) -> tuple[N, N]:
    """Query and key-value heads of a layer, before it is split; without keys of their own, as many as attention keeps sums."""
    ops = {op.name: op for op in block.ops}
    if "k" in ops:
        size = np.asarray(ops["attention"].width).astype(np.int64)
        heads, kv_heads = (ops[name].shapes[0][0] // (size if size.ndim else int(size)) for name in ("q", "k"))
        return heads, kv_heads
    sums = next((saved.elements for saved in ops["attention"].saved if saved.name == "log-sum-exp"), 0)
    heads = sums // work.tokens
    return heads, heads


def predict(config: Any, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work of one of `tp` ranks; `config.sequence` may be an array of 0 and 1."""
    if not np.any(np.asarray(mesh.tp) > 1):
        return work
    sequence = config.sequence * 1
    tokens = 1 + (mesh.tp - 1) * sequence

    def divide(op: Op, block: Block) -> Op:
        by = {COLUMN: mesh.tp, ROW: mesh.tp, HEADS: mesh.tp, EXPERT: 1, WHOLE: 1}.get(op.split, tokens)
        kept = tuple(_kept(saved, mesh.tp, tokens) for saved in op.saved)
        return replace(
            op,
            shapes=tuple(_shape(shape, op.split, mesh.tp) for shape in op.shapes),
            flops=op.flops // by,
            backward=op.backward // by,
            moved=op.moved // by,
            loose=op.loose // by,
            scores=op.scores // by,
            made=op.made // (1 if op.split == ROW else by),
            saved=kept,
            transient=tuple(_kept(saved, mesh.tp, tokens) for saved in op.transient),
            gives=tuple(_kept(saved, mesh.tp, tokens) for saved in op.gives),
            comms=op.comms + _comms(op, block, work, mesh, sequence),
            partial=op.partial + _partial(op, mesh, sequence),
        )

    def edit(block: Block) -> Block:
        entering = block.entering and _kept(block.entering, mesh.tp, tokens)
        divided = replace(block, ops=tuple(divide(op, block) for op in block.ops), entering=entering)
        return _righted(block, divided, work, mesh, sequence)

    made = work.edit(edit)
    return replace(made, gathered=work.gathered - vector_bytes(work) + vector_bytes(made))


def _kept(saved: Saved, tp: N, tokens: N) -> Saved:
    by = {COLUMN: tp, EXPERT: 1, WHOLE: 1}.get(saved.split, tokens)
    return replace(saved, elements=saved.elements // by)


def _shape(shape: tuple[N, ...], split: str, tp: N) -> tuple[N, ...]:
    """A rank's part of a parameter: rows (output features) for a column split, columns for a row split."""
    if split == COLUMN:
        return (-(-shape[0] // tp), *shape[1:])
    return (*shape[:-1], -(-shape[-1] // tp)) if split == ROW and len(shape) > 1 else shape


def _partial(op: Op, mesh: Mesh, sequence: N) -> tuple[tuple[str, tuple[N, ...]], ...]:
    """Parameters that every rank has whole and whose gradients come from its own heads, or tokens where these are divided."""
    kinds = (HEADS, TOKENS, WHOLE)
    whole = [shape for shape in op.shapes if op.split in kinds or (op.split == ROW and len(shape) == 1)]
    counted = (mesh.tp > 1) * 1 * (1 if op.split in (HEADS, WHOLE) else sequence)
    return tuple(("tp", (counted * shape[0], *shape[1:])) for shape in whole) if np.any(counted) else ()


def _comms(op: Op, block: Block, work: Work, mesh: Mesh, sequence: N) -> tuple[Comm, ...]:
    """What opens a pair of matrices and what closes it; sums over ranks, or their two halves where tokens are divided."""
    if block.entering is None or op.name not in (*OPENS, *CLOSES):
        return ()
    size = work.bytes.activation * block.entering.elements
    flows = op.trained or bool(np.any(op.backward))  # a gradient to what it reads
    if op.name in OPENS:
        return _there(_sums(FORWARD, BACKWARD, size, mesh, sequence), flows)
    adapted = any(other.name == f"{op.name}.a" for other in block.ops)
    return _there(_sums(BACKWARD, FORWARD, size, mesh, sequence), flows or adapted)


def _there(comms: tuple[Comm, ...], backward: bool) -> tuple[Comm, ...]:
    """Those that take place: in backward, only where a gradient gets."""
    return tuple(comm for comm in comms if backward or comm.phase != BACKWARD)


def _sums(gathers: str, reduces: str, size: N, mesh: Mesh, sequence: N, there: Any = True) -> tuple[Comm, ...]:
    """A sum of `size` bytes over the ranks, whole or as its two halves in their phases, where `there` is something."""
    split = (mesh.tp > 1) * 1 * there
    whole, halves = split * (1 - sequence), split * sequence
    return (
        Comm("all_reduce", "tp", reduces, size * whole, whole),
        Comm("all_gather", "tp", gathers, size * halves, halves),
        Comm("reduce_scatter", "tp", reduces, size * halves, halves),
    )


def _righted(whole: Block, divided: Block, work: Work, mesh: Mesh, sequence: N) -> Block:
    """A divided kind of layer with what does not divide evenly put right, and the traffic of the vocabulary."""
    before = {op.name: op for op in whole.ops}
    kv_heads = heads_of(whole, work)[1] if "k" in before else mesh.tp
    owned = pick(mesh.tp > kv_heads, kv_heads, mesh.tp)

    def right(op: Op) -> Op:
        if op.name in ("k", "v", "k.b", "v.b", "k bias", "v bias"):
            return _repeated(op, before[op.name], owned, mesh)
        if op.name == "k_norm":
            saved = tuple(replace(s, elements=s.elements // owned) for s in before["k_norm"].saved)
            return replace(op, saved=saved, backward=before["k_norm"].backward // owned)
        if op.name == "attention" and "k" in before:
            inputs = sum(before[name].made // (mesh.tp if name == "q" else owned) for name in ("q", "k", "v"))
            saved = tuple(replace(s, elements=inputs) if s.name == "q, k, v" else s for s in op.saved)
            return replace(op, saved=saved, passed=op.passed // owned)
        if op.name in OPENS and whole.entering is not None:
            again = (mesh.tp > 1) * sequence * (op.trained or _adapters(op.name, before))
            size = work.bytes.activation * whole.entering.elements
            return replace(op, comms=(*op.comms, Comm("all_gather", "tp", BACKWARD, size * again, again, beside=True)))
        if op.name == "embed":
            size = work.bytes.activation * work.tokens * op.shapes[0][1]
            sums = _sums(BACKWARD, FORWARD, size, mesh, sequence, there=op.shapes[0][0] > 0)
            table, *positions = before["embed"].shapes
            shapes = ((_words(table[0], mesh), table[1]), *positions)
            partial = tuple(("tp", (shape[0] * (mesh.tp > 1) * sequence, shape[1])) for shape in positions)
            saved = before["embed"].saved
            comms = (*op.comms, *_there(sums, op.trained))
            return replace(op, shapes=shapes, saved=saved, partial=partial, comms=comms)
        return _vocabulary(op, before["head"], work, mesh, sequence) if op.name == "head" else op

    return replace(divided, ops=tuple(map(right, divided.ops)))


def _adapters(name: str, ops: dict[str, Op]) -> bool:
    """Whether a matrix that reads the same input as `name` has an adapter, whose gradient needs that input whole."""
    readers = ("q", "k", "v") if name == "q" else ("gate", "up")
    return any(f"{reader}.a" in ops for reader in readers)


def _words(vocab: N, mesh: Mesh) -> N:
    """Words of a rank: equal parts, of which the last are smaller, or empty, where the vocabulary does not divide."""
    part = -(-vocab // mesh.tp)
    left = vocab - mesh.tp_rank * part
    return pick(left > part, part, pick(left > 0, left, 0))


def _repeated(op: Op, whole: Op, owned: N, mesh: Mesh) -> Op:
    """A key or value projection of a rank that holds one of `owned` different parts; what others hold too is summed."""
    shapes = tuple((shape[0] // owned, *shape[1:]) for shape in whole.shapes)
    flops, backward = whole.flops // owned, whole.backward // owned
    again = (mesh.tp > owned) * 1
    partial = tuple(("kv", (shape[0] * again, *shape[1:])) for shape in shapes) if np.any(again) else ()
    return replace(op, shapes=shapes, flops=flops, backward=backward, made=whole.made // owned, partial=partial)


def _vocabulary(op: Op, whole: Op, work: Work, mesh: Mesh, sequence: N) -> Op:
    """The head of a rank: its rows of the vocabulary, padded to equal parts, and the sums of the loss.

    The gradient of the hidden states is summed where it is made: in forward by a chunked loss.
    """
    there = whole.made > 0
    rows = pick(there, whole.made // work.tokens, 1)
    part = _words(rows, mesh)

    def share(size: N) -> N:
        return size // rows * part

    def kept(saved: Saved, divided: Saved) -> Saved:
        return replace(saved, elements=share(saved.elements)) if _of_vocabulary(saved) else divided

    size = next(saved.elements for saved in whole.saved if not _of_vocabulary(saved)) * work.bytes.activation
    made = FORWARD if isinstance(whole.backward, int) and not whole.backward else BACKWARD
    calls = pick(work.tokens > CHUNK, -(-work.tokens // CHUNK), 1) if made == FORWARD else 1
    split = (mesh.tp > 1) * 1 * there
    loss = Comm("all_reduce", "tp", FORWARD, split * LOSS_SUMS * work.bytes.statistic * work.tokens, split * 2 * calls)
    return replace(
        op,
        shapes=tuple((_words(shape[0], mesh), *shape[1:]) for shape in whole.shapes),
        flops=share(whole.flops),
        backward=share(whole.backward),
        made=share(whole.made),
        saved=tuple(map(kept, whole.saved, op.saved)),
        transient=tuple(map(kept, whole.transient, op.transient)),
        comms=(*op.comms, *_sums(FORWARD, made, size, mesh, sequence, there), loss),
    )


def _of_vocabulary(saved: Saved) -> bool:
    """Whether a tensor of the head has a row or column for each word."""
    return saved.name in ("logits", "weight gradient")


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Cut this rank's part out of the network's parameters and let its modules exchange what they need.

    Raises UserError for a network whose names no table of sharding knows, for one with experts, and for tokens to be divided
    in one that counts them itself.
    """
    from burnish.ops.tensor_parallel import TensorParallel
    from burnish.ops.vocabulary import Vocabulary
    from burnish.tables.sharding import DECODER, HUGGING_FACE

    loss: Any = trainable.parts[0]
    kind = type(loss.model).__name__
    plan = DECODER if kind == "Decoder" else HUGGING_FACE.get(kind)
    if plan is None:
        raise UserError(
            f"parallel.tp: how to divide a {kind} is not known; known are Decoder, {', '.join(HUGGING_FACE)}"
        )
    if getattr(loss.model.shape if kind == "Decoder" else None, "experts", 0):
        raise UserError(
            "parallel.tp: layers with experts are planned only; use parallel.tp=1, with ZeRO for their memory"
        )
    if config.sequence and kind in HUGGING_FACE:
        raise UserError(f"parallel.sequence: a {kind} counts its positions from the tokens it is given; use false")
    groups = trainable.together(mesh).groups
    member = TensorParallel(loss.model, plan, groups, config.sequence)
    trainable.placements |= {f"0.{name}": place for name, place in member.placements(loss).items()}
    member.cut(trainable.optimizer)
    trainable.join(member)
    if hasattr(loss, "vocabulary"):
        loss.vocabulary = Vocabulary(groups.of["tp"], member.words, config.sequence)
    return trainable
