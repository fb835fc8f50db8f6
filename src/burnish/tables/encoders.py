"""Encoder families: how each one's `config.json` keys and checkpoint names map onto ours, and which heads its files have.

A family is one `EncoderFamily` row; no other file asks which family an encoder is of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from burnish.tables.families import LAYER, Link, linear, plain

NONE, SEQUENCE, TOKENS = (
    "none",
    "sequence",
    "tokens",
)  # what stands on the body: nothing, a class a text, a class a token


@dataclass(frozen=True)
class Head:
    """One kind of head as a family's files have it."""

    architecture: str
    links: tuple[Link, ...] = ()
    pooler: str | None = None  # what its files call the dense layer of the first position; None: there is none
    prefix: str = ""  # of the body's names


@dataclass(frozen=True)
class EncoderFamily:
    """One family of encoders as its Hugging Face checkpoints spell it."""

    model_type: str
    defaults: dict[str, Any]  # config.json values that upstream assumes when a file leaves the key out
    heads: dict[str, Head]
    bodies: tuple[str, ...]  # architectures with a head for pre-training, of which the body alone is read
    unread: tuple[str, ...]  # beginnings of the names of that head's tensors
    after_pad: bool = False  # positions are counted from the row behind the padding token's
    derived: tuple[str, ...] = field(
        default=("embeddings.position_ids",)
    )  # endings of names that follow from the config


KEYS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "table": "max_position_embeddings",
    "types": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "activation": "hidden_act",
    "pad": "pad_token_id",
    "init_std": "initializer_range",
}
DEFAULTS = {
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
    "initializer_range": 0.02,
}
# Values this encoder requires; any other is refused.
FIXED = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
ONE_CLASS = (None, "single_label_classification")  # values of problem_type with one label a text
# Name in a config.json -> which of our activations it is.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
POOLER = "pooler.dense."  # in the names of a pooler's tensors
ALSO = {".gamma": ".weight", ".beta": ".bias"}  # endings of norms' names in the first checkpoints -> in later ones


def normed(ours: str, theirs: str) -> tuple[Link, ...]:
    """A LayerNorm's weight and bias."""
    return plain({f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")})


def body() -> tuple[Link, ...]:
    """The names that BERT gave and others took over, without the body's prefix."""
    theirs = "encoder.layer.{i}."
    names = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
    tables = {"embed": "word", "positions": "position", "types": "token_type"}
    projections = [linear(f"{LAYER}attention.{n}", f"{theirs}attention.{name}", True) for n, name in names.items()]
    return (
        *plain({f"{ours}.weight": f"embeddings.{name}_embeddings.weight" for ours, name in tables.items()}),
        *normed("embed_norm", "embeddings.LayerNorm"),
        *(link for links in projections for link in links),
        *normed(f"{LAYER}attention_norm", f"{theirs}attention.output.LayerNorm"),
        *linear(f"{LAYER}mlp.up", f"{theirs}intermediate.dense", True),
        *linear(f"{LAYER}mlp.down", f"{theirs}output.dense", True),
        *normed(f"{LAYER}mlp_norm", f"{theirs}output.LayerNorm"),
    )


BODY = body()
HEAD = linear("head", "classifier", True)

ROWS = (
    EncoderFamily(
        model_type="bert",
        defaults=DEFAULTS,
        heads={
            NONE: Head("BertModel", pooler="pooler.dense"),
            SEQUENCE: Head("BertForSequenceClassification", HEAD, pooler="bert.pooler.dense", prefix="bert."),
            TOKENS: Head("BertForTokenClassification", HEAD, prefix="bert."),
        },
        bodies=("BertForMaskedLM", "BertForPreTraining", "BertForNextSentencePrediction"),
        unread=("cls.",),
    ),
    EncoderFamily(
        model_type="roberta",
        defaults=DEFAULTS | {"pad_token_id": 1},
        heads={
            NONE: Head("RobertaModel", pooler="pooler.dense"),
            SEQUENCE: Head(
                "RobertaForSequenceClassification",
                linear("head", "classifier.out_proj", True),
                pooler="classifier.dense",
                prefix="roberta.",
            ),
            TOKENS: Head("RobertaForTokenClassification", HEAD, prefix="roberta."),
        },
        bodies=("RobertaForMaskedLM",),
        unread=("lm_head.",),
        after_pad=True,
    ),
)
ENCODERS = {row.model_type: row for row in ROWS}
