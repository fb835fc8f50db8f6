"""CI arguments: the command line of a Megatron-LM test as a decoder, a mapping, and what the last stage holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping as Record
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from burnish.architecture import Architecture
from burnish.mapping import RECOMPUTE, Mapping
from burnish.rows.cells import Cells, NotExpressed

# Widths of a feed-forward part where none is given; two thirds of it with a gate (Megatron-LM's defaults).
FEED_FORWARD = 4
GATED_MULTIPLE = 64


@dataclass(frozen=True)
class Arguments:
    """One test: its cells and its arguments by their names on the command line."""

    cells: Cells
    values: Record[str, Any]

    def flag(self, name: str) -> bool:
        """Whether a switch is on."""
        return bool(self.values.get(name))

    def text(self, name: str) -> str:
        """An argument's value as text, empty where it is not given."""
        return str(self.values.get(name, ""))

    def number(self, name: str, default: int = 0) -> int:
        """An argument's number."""
        return int(self.values.get(name, default))

    def degree(self, column: str) -> int:
        """A degree of parallelism from the line's own column, one where it is blank."""
        return self.cells.whole(column) or 1

    @cached_property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return self.degree("pp")

    @cached_property
    def chunks(self) -> int:
        """Chunks of layers a stage holds."""
        return self.degree("vpp") if self.stages > 1 else 1

    @cached_property
    def routed(self) -> list[int]:
        """1 for each layer with experts, 0 for each without, in their order."""
        layers = self.number("num-layers")
        if not self.number("num-experts"):
            return [0] * layers
        runs = re.findall(r"\[(\d)\]\s*\*\s*(\d+)", self.text("moe-layer-freq"))
        pattern = [int(kind) for kind, count in runs for _ in range(int(count))]
        return pattern or [1] * layers


def arguments_of(cells: Cells) -> Arguments:
    """The arguments of a line. Raises NotExpressed where they cannot be read."""
    try:
        values = json.loads(cells.text("args_json"))
    except json.JSONDecodeError:
        raise NotExpressed("args_json: not JSON") from None
    if not isinstance(values, dict) or "num-layers" not in values:
        raise NotExpressed("args_json: no num-layers among the arguments")
    return Arguments(cells, values)


def architecture(args: Arguments) -> Architecture:
    """The decoder of a test."""
    hidden, heads = args.number("hidden-size"), args.number("num-attention-heads")
    gated, latent = args.flag("swiglu"), args.flag("multi-latent-attention")
    wide = FEED_FORWARD * hidden
    default = int(wide * 2 / 3) // GATED_MULTIPLE * GATED_MULTIPLE if gated else wide
    ffn = args.number("ffn-hidden-size", default)
    experts = args.number("num-experts")
    plain = args.flag("disable-bias-linear") or args.text("normalization") == "RMSNorm"
    rotary = args.text("position-embedding-type") == "rope"
    return Architecture(
        name=args.cells.text("test_case"),
        vocab=_vocabulary(args),
        hidden=hidden,
        layers=args.number("num-layers"),
        heads=heads,
        kv_heads=args.number("num-query-groups", heads) if args.flag("group-query-attention") else heads,
        head_dim=args.number("qk-head-dim") if latent else args.number("kv-channels", hidden // heads),
        ffn=ffn,
        gated=int(gated),
        tied=int(not args.flag("untie-embeddings-and-output-weights")),
        positions=0 if rotary else args.number("max-position-embeddings"),
        layer_norm=int(not plain),
        experts=experts,
        topk=args.number("moe-router-topk", 2) if experts else 0,
        expert_ffn=args.number("moe-ffn-hidden-size", ffn) if experts else 0,
        shared_ffn=args.number("moe-shared-expert-intermediate-size"),
        expert_layers=sum(args.routed),
        q_rank=args.number("q-lora-rank") if latent else 0,
        kv_rank=args.number("kv-lora-rank") if latent else 0,
        rope_dim=args.number("qk-pos-emb-head-dim") if latent else 0,
        value_dim=args.number("v-head-dim") if latent else 0,
        mtp=args.number("mtp-num-layers"),
    )


def _vocabulary(args: Arguments) -> int:
    """Rows of the embedding table: the vocabulary, padded to a multiple for each tensor-parallel rank."""
    if (padded := args.cells.whole("padded_vocab")) is not None:
        return padded
    stated = args.number("vocab-size") or args.cells.whole("vocab")
    if not stated:
        raise NotExpressed("vocab: blank")
    multiple = args.number("make-vocab-size-divisible-by", 128) * args.degree("tp")
    return math.ceil(stated / multiple) * multiple


def mapping(args: Arguments) -> Mapping:
    """The layout of a test over its ranks; experts are cut as other layers unless their own degree is given."""
    tp, pp, cp = (args.degree(name) for name in ("tp", "pp", "cp"))
    dp = args.cells.whole("dp") or max(1, (args.cells.whole("n_gpus") or 8) // (tp * pp * cp))
    full = args.text("recompute-granularity") == "full"
    attention = args.text("recompute-granularity") == "selective" and (
        "core_attn" in args.text("recompute-modules") or not args.text("recompute-modules")
    )
    return Mapping(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=args.degree("ep"),
        etp=args.cells.whole("etp") or tp,
        vpp=args.chunks,
        zero=_sharding(args),
        shard=_shard(args, dp * cp),
        sp=int(args.flag("sequence-parallel") and tp > 1),
        micro_batch=args.number("micro-batch-size"),
        recompute=RECOMPUTE.index("full" if full else "attention" if attention else "none"),
    )


def _shard(args: Arguments, ranks: int) -> int:
    """Ranks that split one copy of the states, 0 for all: as many as each instance of the optimizer has.

    Megatron-FSDP splits all parameters over the ranks that share experts, of which there are fewer (observed).
    """
    copies = args.number("num-distributed-optimizer-instances", 1)
    if args.flag("use-megatron-fsdp"):
        copies *= args.degree("ep")
    return max(1, ranks // copies) if copies > 1 else 0


def _sharding(args: Arguments) -> int:
    """ZeRO stage."""
    if args.flag("use-megatron-fsdp"):
        kinds = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        return kinds.get(args.text("data-parallel-sharding-strategy"), 0)
    return int(args.flag("use-distributed-optimizer") or args.text("optimizer").startswith("dist_"))


def last_layers(args: Arguments) -> list[int]:
    """For each layer of the last stage whether it has experts."""
    routed, pp, chunks = args.routed, args.stages, args.chunks
    if layout := args.text("pipeline-model-parallel-layout"):
        return _of_layout(expanded(layout), routed, pp)
    if (last := args.number("decoder-last-pipeline-num-layers")) and pp > 1:
        return routed[-last:]
    ends = [int(args.flag(f"account-for-{end}-in-pipeline-split")) for end in ("embedding", "loss")]
    each = (len(routed) + sum(ends)) // (pp * chunks)
    starts = [(chunk * pp + pp - 1) * each - ends[0] for chunk in range(chunks)]
    return [kind for start in starts for kind in routed[start : start + each]]


def expanded(layout: str) -> list[str]:
    """A layout of stages as one word each: `Et*2|(tt|)*3L` is Ett, tt, tt, tt, L (E embedding, t layer, m further, L loss)."""
    text = layout.replace(" ", "")
    while (group := re.search(r"\(([^()]*)\)\*(\d+)", text)) is not None:
        text = text[: group.start()] + group[1] * int(group[2]) + text[group.end() :]
    text = re.sub(r"([A-Za-z|])\*(\d+)", lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def _of_layout(stages: list[str], routed: list[int], pp: int) -> list[int]:
    """The layers of the last rank, which has every pp-th of the stages of a layout."""
    mine, at = [], 0
    for index, stage in enumerate(stages):
        count = stage.count("t")
        if index % pp == pp - 1:
            mine += routed[at : at + count]
        at += count
    return mine
