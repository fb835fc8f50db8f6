"""Tensor parallelism on a plain network: every rank cuts its part out of the parameters, in place, and the modules at the
edges of what is divided get a forward that sums, gathers or scatters.

Parameters stay ordinary tensors, so that an optimizer, sharding and checkpointing meet nothing new. Which module plays which
role is a table of names (tables/sharding.py); the network says nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.groups import Groups, head_group, local
from burnish.ops.lora import Adapted, beside
from burnish.ops.master_weights import MasterWeights
from burnish.ops.split_products import VocabularyTable, column, opened
from burnish.ops.together import Member
from burnish.ops.token_collectives import GatherScores, ScatterSum, Sum, WholeInput
from burnish.placement import Placement, cut
from burnish.tables.sharding import COLUMN, HEADS, KEYS, OPENS, ROW, SCORES, TABLE, VOCABULARY, Plan


class TensorParallel(Member):
    """One rank's part of a network. `sequence`: between the products tokens are divided too."""

    def __init__(self, network: nn.Module, plan: Plan, groups: Groups, sequence: bool) -> None:
        self.groups, self.sequence = groups, sequence
        self.group, self.place = groups.of["tp"], groups.places["tp"]
        self.parts = self.group.size()
        self.divided: dict[Tensor, None] = {}  # every rank has another part
        self.repeated: dict[Tensor, None] = {}  # key-value heads that some other ranks have too
        self.partial: dict[Tensor, None] = {}  # the same on every rank, with a gradient from its own tokens or heads
        self.holders: dist.ProcessGroup | None = None
        self.cuts: dict[Tensor, tuple[int, int, int]] = {}  # dimension, first and end of this rank's part
        self.words = 0  # first of this rank's
        named = [(name, module, _role(name, plan)) for name, module in network.named_modules()]
        for name, module, role in named:
            self._take(name, module, role, network)

    @torch.no_grad()
    def cut(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave of every divided parameter this rank's part, and of the masters that wait for the first step."""
        masters = optimizer._whole if isinstance(optimizer, MasterWeights) else {}
        for parameter, (dim, first, end) in self.cuts.items():
            if parameter in masters:
                masters[parameter] = masters[parameter].narrow(dim, first, end - first).clone()
            parameter.data = parameter.data.narrow(dim, first, end - first).clone()

    def placements(self, part: nn.Module) -> dict[str, Placement]:
        """Where this rank's parts lie in the whole parameters of `part`, by name; to be asked for before they are cut."""
        named = [(name, p) for name, p in part.named_parameters(remove_duplicate=False) if p in self.cuts]
        places = {name: (tuple(parameter.shape), self.cuts[parameter]) for name, parameter in named}
        return {name: cut(name, shape, dim, [(first, end)]) for name, (shape, (dim, first, end)) in places.items()}

    def _take(self, name: str, module: Any, role: str, network: nn.Module) -> None:
        """Give a module its role: what it does around its forward, and what of its parameters is this rank's."""
        plain = module.forward
        if role == OPENS:
            module.forward = partial(self._opening, plain)  # type: ignore[method-assign]
        elif role in (COLUMN, KEYS):
            own = self._key_rows(module, network.get_submodule(name.rpartition(".")[0])) if role == KEYS else None
            for kind, parameter in module.named_parameters():
                if kind == "a":  # of an adapter: what it makes is narrow and whole, and goes to this rank's rows of `b`
                    self.partial[parameter] = None
                else:
                    self._divide(parameter, 0, own)
            module.forward = partial(_column, module)  # type: ignore[method-assign]
        elif role == ROW:
            self._divide(module.weight, 1)
            module.forward = partial(self._closing, module)  # type: ignore[method-assign]
            if module.bias is not None and self.sequence:
                self.partial[module.bias] = None
            if isinstance(module, Adapted):
                self._divide(module.a, 1)
                self.partial[module.b] = None
        elif role in (VOCABULARY, SCORES):
            self._divide(module.weight, 0)
            self.words = -(-module.weight.shape[0] // self.parts) * self.place
            looked_up = isinstance(module, nn.Embedding)
            forward = self._table if looked_up else self._scores if role == SCORES else None
            if forward is not None:
                module.forward = partial(forward, module)  # type: ignore[method-assign]
        elif role == TABLE and self.sequence:
            self.partial |= dict.fromkeys(module.parameters())
            module.forward = partial(self._own_tokens, plain)  # type: ignore[method-assign]
        elif role == HEADS or (self.sequence and not list(module.children())):
            self.partial |= dict.fromkeys(module.parameters())

    def _divide(self, parameter: Tensor, dim: int, rows: slice | None = None) -> None:
        if parameter in self.cuts:  # tied: cut once
            return
        size = parameter.shape[dim]
        part = -(-size // self.parts)
        first, end = (part * self.place, part * (self.place + 1)) if rows is None else (rows.start, rows.stop)
        repeated = rows is not None and self.holders is not None
        (self.repeated if repeated else self.divided)[parameter] = None
        self.cuts[parameter] = dim, min(first, size), min(end, size)

    def _key_rows(self, module: Any, attention: Any) -> slice:
        """The rows of this rank's key-value heads; with fewer heads than ranks neighbours hold the same one."""
        head = int(attention.head_dim)
        heads = module.weight.shape[0] // head
        if heads >= self.parts:
            each = heads // self.parts * head
            return slice(each * self.place, each * (self.place + 1))
        holders = self.parts // heads
        if self.holders is None:
            self.holders = head_group(self.groups, self.parts, holders)
        number = self.place // holders
        return slice(head * number, head * (number + 1))

    def _opening(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Every rank gets the whole input; its gradient is a sum over what ranks made of it."""
        name = "" if args else "hidden_states"
        x = args[0] if args else kwargs[name]
        whole = opened(x, self.group) if self.sequence else WholeInput.apply(x, self.group)
        return plain(whole, *args[1:], **kwargs) if args else plain(**{**kwargs, name: whole})

    def _closing(self, module: Any, x: Tensor) -> Tensor:
        """The sum of what ranks made of their parts; a bias is added once, to the sum."""
        product = partial(_product(module), x, module.weight, None)
        made = beside(module, x) + product() if isinstance(module, Adapted) else product()
        whole = (ScatterSum if self.sequence else Sum).apply(made, self.group)
        return whole if module.bias is None else whole + module.bias.to(whole.dtype)

    def _table(self, module: Any, ids: Tensor) -> Tensor:
        rows = VocabularyTable.apply(ids, module.weight, self.words)
        return (ScatterSum if self.sequence else Sum).apply(rows, self.group)

    def _scores(self, module: Any, x: Tensor) -> Tensor:
        count = module.out_features  # of the whole vocabulary: what was cut is the weight
        return GatherScores.apply(_column(module, WholeInput.apply(x, self.group)), self.group, count)

    def _own_tokens(self, plain: Callable[..., Tensor], positions_BS: Tensor) -> Tensor:
        return plain(positions_BS.chunk(self.parts, dim=1)[self.place])

    def counts(self, parameter: Tensor) -> bool:
        """What several ranks hold is counted by the first of them."""
        if parameter in self.repeated:
            assert self.holders is not None
            return dist.get_rank(self.holders) == 0
        return parameter in self.divided or self.place == 0

    def reduced(self) -> None:
        """Sum the gradients that each rank has a part of, those of one group in one piece."""
        for parameters, group in ((self.partial, self.group), (self.repeated, self.holders)):
            gradients = [local(p.grad) for p in parameters if p.grad is not None]
            if gradients and group is not None:
                together = torch.cat([gradient.flatten() for gradient in gradients])
                dist.all_reduce(together, group=group)
                for gradient, part in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
                    gradient.copy_(part.view_as(gradient))

    def replaced(self, by: Mapping[Tensor, Tensor]) -> None:
        """Parameters are others from now on, with the same places."""
        for kind in ("divided", "repeated", "partial"):
            setattr(self, kind, {by.get(parameter, parameter): None for parameter in getattr(self, kind)})


def _column(module: Any, x: Tensor) -> Tensor:
    if isinstance(module, Adapted):
        narrow = column(x, module.a, None)
        wide = F.linear(narrow * module.scale, module.b)
        return wide.add_(column(x, module.weight, module.bias, _product(module)))
    return column(x, module.weight, module.bias, _product(module))


def _product(module: Any) -> Callable[..., Tensor]:
    """What a layer multiplies with; another library's layers have nothing of their own."""
    product: Callable[..., Tensor] = getattr(module, "product", F.linear)
    return product


def _role(name: str, plan: Plan) -> str:
    parts = name.split(".")
    for pattern, role in plan.items():
        wanted = pattern.split(".")
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            return role
    return ""
