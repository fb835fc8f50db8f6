"""Settings of encoders that others wrote, right or not: a config or one line, never anything else, and never for long."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.encoders.config import EncoderConfig
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import load_encoder
from burnish.load.sentence_folder import Pooling, pooling_of

BERT = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}
KEYS = [
    *BERT,
    *("architectures", "id2label", "num_labels", "problem_type", "pad_token_id", "type_vocab_size", "hidden_act"),
    *("max_position_embeddings", "layer_norm_eps", "initializer_range", "position_embedding_type", "is_decoder"),
]
POOLING = ["pooling_mode", "pooling_mode_cls_token", "pooling_mode_mean_tokens"]
SCALARS = st.none() | st.booleans() | st.integers(-3, 10**18) | st.floats() | st.text(max_size=5)
NAMES = st.sampled_from(["BertModel", "BertForSequenceClassification", "RobertaModel", "relu", "0", "1"])
VALUES = SCALARS | NAMES | st.lists(SCALARS | NAMES, max_size=3) | st.dictionaries(NAMES, SCALARS, max_size=3)


def outcome(read: Callable[[], Any]) -> tuple[Any, str]:
    """What was read, or the line that says why not."""
    try:
        return read(), ""
    except UserError as error:
        return None, str(error)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_settings_are_a_config_or_one_line(changes):
    made, said = outcome(lambda: EncoderConfig.from_hf(BERT | changes))
    if made is None:
        assert said.startswith("config.json: ")
        assert "\n" not in said
    else:
        assert EncoderConfig.from_hf(made.to_hf(), pooler=made.pooler) == made


@given(st.dictionaries(st.sampled_from(POOLING), VALUES), VALUES)
def test_any_settings_of_sentences_are_a_pooling_or_one_line(tmp_path_factory, pooling, length):
    folder = tmp_path_factory.mktemp("m")
    (folder / "1_Pooling").mkdir()
    steps = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    checkpoint = Checkpoint(str(folder), "safetensors", BERT, {})
    found, said = outcome(lambda: pooling_of(checkpoint, EncoderConfig.from_hf(BERT)))
    if found is None:
        assert said.startswith(str(folder))
        assert "\n" not in said
    else:
        assert isinstance(found, Pooling)
        assert 3 <= found.limit <= 512


def test_more_layers_than_tensors_are_refused_at_once():
    with pytest.raises(UserError, match="num_hidden_layers is 1,000,000,000,000"):
        load_encoder(Checkpoint("m", "safetensors", BERT | {"num_hidden_layers": 10**12}, {}))
