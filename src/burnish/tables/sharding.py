"""Sharding: how tensor parallelism divides the modules of a network, by module name; a network without a table is refused.

A name is a dotted pattern; what no row names is whole on every rank.
"""

from __future__ import annotations

OPENS = "opens"  # a module whose input every rank needs whole, and whose parts divide what they make of it
COLUMN = "column"  # a product whose output features are divided
KEYS = "keys"  # one of keys or values, by heads, which are repeated where there are fewer than ranks
ROW = "row"  # a product whose input features are divided; its results are summed
VOCABULARY = "vocabulary"  # a table or a product with a row for each word
SCORES = "scores"  # such a product in a network that computes its own loss: its result is put together again
TABLE = "table"  # a table whose rows are added to the tokens of this rank
HEADS = "heads"  # a module that every head passes; its gradient is a sum over the heads of all ranks

Plan = dict[str, str]  # pattern -> role


def _layers(layers: str, attention: str, feed_forward: str, ending: str = "") -> Plan:
    """The layers that Llama's kin share, by what they call their parts."""
    inside = {"q": COLUMN, "k": KEYS, "v": KEYS, "o": ROW}
    plan = {f"{layers}.{attention}": OPENS, f"{layers}.{feed_forward}": OPENS}
    plan |= {f"{layers}.{attention}.{name}{ending}": role for name, role in inside.items()}
    plan |= {f"{layers}.{attention}.{name}": HEADS for name in ("q_norm", "k_norm")}
    return plan | {
        f"{layers}.{feed_forward}.gate{ending}": COLUMN,
        f"{layers}.{feed_forward}.up{ending}": COLUMN,
        f"{layers}.{feed_forward}.down{ending}": ROW,
    }


DECODER: Plan = _layers("layers.*", "attention", "mlp") | {"embed": VOCABULARY, "head": VOCABULARY, "positions": TABLE}

# Networks of transformers, by class.
_LLAMA = _layers("model.layers.*", "self_attn", "mlp", "_proj") | {"model.embed_tokens": VOCABULARY, "lm_head": SCORES}
HUGGING_FACE: dict[str, Plan] = dict.fromkeys(
    ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"), _LLAMA
)
