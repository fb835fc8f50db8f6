"""Judging by labelled examples: each way against its definition worked out one example at a time, in float64."""

from __future__ import annotations

import json
import math
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, processors

from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer
from burnish.encoders.config import EncoderConfig
from burnish.evaluation import choices as choosing
from burnish.evaluation.choices import continuation, log_likelihoods, taken
from burnish.evaluation.classes import ClassCounts, accuracy, counted, macro_f1, nearest_mean
from burnish.evaluation.correlation import pearson, ranks, spearman
from burnish.evaluation.task import evaluate_task, task_lines
from burnish.export.encoder import save_encoder
from burnish.export.safetensors import save_folder
from burnish.load.encoder import load_encoder
from burnish.load.folder import open_folder
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder
from burnish.serve.generate import complete
from burnish.serve.sampling import Sampling

DECODER = ModelConfig(vocab=300, hidden=32, ffn=48, layers=2, heads=4, max_positions=64, init_std=0.3, bos=0, eos=0)
LETTERS = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"])}
ENCODER = EncoderConfig(vocab=len(LETTERS), hidden=24, ffn=32, layers=2, heads=3, table=40, init_std=0.3)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A folder of a small decoder over bytes with a few merges, so that tokens join across a border."""
    folder = tmp_path_factory.mktemp("decoder")
    tokenizer = Tokenizer.train(["the cat sat on the mat and the dog sat on the log"] * 20, 290)
    tokenizer.save(folder / "tokenizer.json")
    model = Decoder(DECODER, torch.Generator().manual_seed(3))
    save_folder(model, DECODER, folder / "m", tokenizer=folder / "tokenizer.json")
    return folder / "m"


def encoder_folder(folder, config: EncoderConfig = ENCODER):
    inner = Inner(models.WordLevel(LETTERS, "[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    frame = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
    inner.post_processor = processors.TemplateProcessing(**frame, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    inner.save(str(folder / "tokenizer.json"))
    save_encoder(Encoder(config, torch.Generator().manual_seed(5)), config, folder / "m", tokenizer=folder)
    return folder / "m"


def jsonl(folder, rows):
    path = folder / "task.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def judged(model, path, **settings):
    return evaluate_task(open_folder(model), path, **settings)


# Choices --------------------------------------------------------------------------------------------------------------

QUESTIONS = [
    {"prompt": "the cat sat on", "choices": ["the mat", "the log and the dog", "a"], "answer": 0},
    {"prompt": "the dog ", "choices": ["sat", "cat on the mat", "log", "mat"], "answer": "log"},
    {"prompt": "", "choices": ["the", "naïve \u8a9e"], "answer": 1},
    {"prompt": "on the", "choices": [" log", " mat and"], "answer": "1"},
]


def alone_in_float64(folder, question) -> list[float]:
    """Each choice by itself: the whole text's tokens after those of the prompt, one log probability after another."""
    config = DECODER
    model = Decoder(config, torch.Generator().manual_seed(3)).double()
    tokenizer = Tokenizer.load(folder, config.eos)
    prompt, found = question["prompt"].rstrip(), []
    for choice in question["choices"]:
        apart = "" if choice.startswith(" ") or not prompt else " "
        before, whole = (tokenizer.encode_prompt(text) for text in (prompt, prompt + apart + choice))
        total = 0.0
        for at in range(len(before), len(whole)):
            scores = model.logits(model(torch.tensor([whole[:at]])))[0, -1]
            total += scores.log_softmax(-1)[whole[at]].item()
        found.append(total)
    return found


def texts_of(folder, question, where="here"):
    tokenizer = Tokenizer.load(folder, DECODER.eos)
    return [continuation(tokenizer, question["prompt"], choice, 0, where) for choice in question["choices"]]


@pytest.mark.parametrize("batch", [1, 3, 16])
@torch.no_grad()
def test_log_likelihoods_equal_each_choice_alone_in_float64(decoder, batch):
    texts = [text for question in QUESTIONS for text in texts_of(decoder, question)]
    wanted = [score for question in QUESTIONS for score in alone_in_float64(decoder, question)]
    assert len({len(text.ids) for text in texts}) > 4
    model = Decoder(DECODER, torch.Generator().manual_seed(3))
    assert log_likelihoods(model, texts, batch) == pytest.approx(wanted, abs=1e-4)
    assert log_likelihoods(model.double(), texts, batch) == pytest.approx(wanted, abs=1e-10)


@torch.no_grad()
def test_a_file_of_choices_is_scored_as_defined(decoder, tmp_path):
    found = judged(decoder, jsonl(tmp_path, QUESTIONS), batch=3)
    right = {"acc": 0, "acc_norm": 0}
    for question, answer in zip(QUESTIONS, (0, 2, 1, 1), strict=True):
        scores = alone_in_float64(decoder, question)
        by_byte = [s / len(c.encode()) for s, c in zip(scores, question["choices"], strict=True)]
        right["acc"] += int(np.argmax(scores)) == answer
        right["acc_norm"] += int(np.argmax(by_byte)) == answer
    assert found.scores == {name: count / 4 for name, count in right.items()}
    assert found.about == "likelihood of each choice after its prompt: 4 questions, 11 choices"


def test_a_choice_is_taken_by_its_sum_and_by_its_bytes():
    assert taken([-3.0, -4.0, -3.5], ["ab", "abcdefgh", "\u8a9e\u8a9e"]) == (0, 1)
    assert taken([-3.0, -3.0], ["ab", "cd"]) == (0, 0)


def test_csv_choices_are_a_json_list(decoder, tmp_path):
    path = tmp_path / "task.csv"
    path.write_text('prompt,choices,answer\nthe cat,"[""sat"", ""on""]",on\nthe dog,"[""1"", ""0""]",0\n')
    assert judged(decoder, path).examples == 2


@pytest.mark.sabotage
@torch.no_grad()
def test_a_score_of_the_wrong_position_is_noticed(decoder, monkeypatch):
    right = choosing.Continuation
    texts = texts_of(decoder, QUESTIONS[0])
    shifted = [right([*text.ids[:-1], text.ids[-2]], text.scored) for text in texts]
    model = Decoder(DECODER, torch.Generator().manual_seed(3))
    wanted = alone_in_float64(decoder, QUESTIONS[0])
    assert log_likelihoods(model, texts) == pytest.approx(wanted, abs=1e-4)
    assert log_likelihoods(model, shifted) != pytest.approx(wanted, abs=1e-1)


# Answers --------------------------------------------------------------------------------------------------------------


def test_greedy_text_is_held_against_the_answer(decoder, tmp_path):
    model = Decoder(DECODER, torch.Generator().manual_seed(3))
    tokenizer = Tokenizer.load(decoder, DECODER.eos)
    prompts = ["the cat", "on the mat and", "dog", "sat on"]
    options = Sampling(max_new_tokens=5, eos=DECODER.eos, stop=("\n",))
    said = [complete(model, [tokenizer.encode_prompt(p)], options, decode=tokenizer.decode)[0].text for p in prompts]
    answers = [said[0], f" {said[1].strip()} ", said[2] + "x", said[3]]
    rows = [{"prompt": p, "answer": a} for p, a in zip(prompts, answers, strict=True)]
    found = judged(decoder, jsonl(tmp_path, rows), batch=3, new_tokens=5)
    assert found.scores == {"exact_match": 0.75}
    assert found.about == "greedy text to the end of its line, 5 tokens at most against the answer: 4 prompts"


# Classes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [False, True])
@torch.no_grad()
def test_a_classifier_is_counted_class_by_class(pairs, tmp_path):
    config = EncoderConfig(**ENCODER.model_dump() | {"head": "sequence", "labels": ("no", "yes", "perhaps")})
    folder = encoder_folder(tmp_path, config)
    model, _ = load_encoder(open_folder(folder))
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice(list("abcdefghij"), draw.integers(1, 9))) for _ in range(30)]
    labels = [["no", "yes", "perhaps", 1][k] for k in draw.integers(0, 4, 30)]
    names = ("sentence1", "sentence2") if pairs else ("text",)
    rows = [
        dict(zip(names, (text, text[::-1]), strict=False)) | {"label": k} for text, k in zip(texts, labels, strict=True)
    ]
    found = judged(folder, jsonl(tmp_path, rows))
    guesses = []
    for text in texts:
        parts = [LETTERS[c] for c in text]
        ids = [2, *parts, 3] + ([*parts[::-1], 3] if pairs else [])
        types = [0] * (len(parts) + 2) + ([1] * (len(parts) + 1) if pairs else [])
        scores = model.logits(model(torch.tensor([ids]), types_BS=torch.tensor([types])))
        guesses.append(config.labels[int(scores.argmax())])
    truth = ["yes" if label == 1 else label for label in labels]
    assert found.scores["accuracy"] == np.mean([a == b for a, b in zip(truth, guesses, strict=True)])
    f1 = []
    for name in sorted(set(truth) | set(guesses)):
        hit = sum(a == b == name for a, b in zip(truth, guesses, strict=True))
        precision, recall = (hit / max(side.count(name), 1) for side in (guesses, truth))
        f1.append(2 * precision * recall / (precision + recall) if hit else 0.0)
        assert found.classes[name]["there"] == truth.count(name)
    assert found.scores["macro_f1"] == pytest.approx(np.mean(f1), rel=1e-12)
    assert task_lines(found)[0] == "the head's class of each text: 30 texts"


def test_a_published_table_of_counts():
    """Accuracy and macro F1 of scikit-learn's example of f1_score: y_true 0 1 2 0 1 2, y_pred 0 2 1 0 0 1."""
    counts = counted(list("012012"), list("021001"))
    assert counts["0"] == ClassCounts(there=2, guessed=3, right=2)
    assert macro_f1(counts) == pytest.approx(0.26666666)
    assert accuracy(counts) == pytest.approx(1 / 3)


@given(st.integers(0, 10_000))
def test_the_nearest_mean_leaves_each_vector_out(seed):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(3, 12))
    vectors = draw.normal(size=(count, 4))
    truth = [str(k) for k in draw.integers(0, 3, count)]
    wanted = []
    for row in range(count):
        near = {}
        for name in sorted(set(truth)):
            members = [vectors[k] / np.linalg.norm(vectors[k]) for k in range(count) if truth[k] == name and k != row]
            if members:
                mean = np.mean(members, axis=0)
                near[name] = vectors[row] @ mean / np.linalg.norm(mean)
        wanted.append(max(near, key=lambda name: near[name]) if near else truth[row])
    if len(set(truth)) > 1:
        assert nearest_mean(vectors, truth) == wanted


def test_an_encoder_without_a_head_takes_the_nearest_mean(tmp_path):
    rows = [{"text": text, "label": label} for text, label in [("ab", "x"), ("abb", "x"), ("hij", "y"), ("hhij", "y")]]
    found = judged(encoder_folder(tmp_path), jsonl(tmp_path, rows))
    assert found.examples == 4
    assert "each text left out of its own class's mean; vectors: mean of the tokens" in found.about
    assert found.scores["accuracy"] == 1.0


# Correlation ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-5, 5), st.floats(-1e3, 1e3)), min_size=2, max_size=30))
def test_correlations_equal_their_definitions(pairs):
    a, b = ([float(p[k]) for p in pairs] for k in (0, 1))
    by_count = [sum(x < y for x in a) + (sum(x == y for x in a) + 1) / 2 for y in a]
    assert ranks(a).tolist() == by_count
    found = pearson(a, b)
    if len(set(a)) > 1 and len(set(b)) > 1 and np.std(b) > 1e-6:
        # The same number from pairs of differences: sum of (ai - aj)(bi - bj) over the root of the sums of squares.
        steps = [(x[0] - y[0], x[1] - y[1]) for x, y in combinations(pairs, 2)]
        root = math.sqrt(sum(u * u for u, _ in steps) * sum(v * v for _, v in steps))
        assert found == pytest.approx(sum(u * v for u, v in steps) / root, abs=1e-9)
        assert -1 - 1e-12 <= spearman(a, b) <= 1 + 1e-12


def test_a_textbook_spearman():
    """IQ and hours of television of ten people: rho = -29/165."""
    iq = [106, 86, 100, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 0, 27, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(-29 / 165, rel=1e-12)


@torch.no_grad()
def test_pairs_are_correlated_by_their_cosines(tmp_path):
    folder = encoder_folder(tmp_path)
    model, _ = load_encoder(open_folder(folder))
    pairs = [("abc", "abd"), ("a", "hij"), ("fg", "fgg"), ("jjj", "ab"), ("cd", "dc")]
    scores = [4.5, 0, 5, "1.5", 3]
    rows = [{"text_a": a, "text_b": b, "score": s} for (a, b), s in zip(pairs, scores, strict=True)]

    def vector(text: str) -> torch.Tensor:
        return model(torch.tensor([[2, *(LETTERS[c] for c in text), 3]]))[0].mean(0)

    cosines = [F.cosine_similarity(vector(a), vector(b), dim=0).item() for a, b in pairs]
    found = judged(folder, jsonl(tmp_path, rows))
    assert found.scores["pearson"] == pytest.approx(np.corrcoef(cosines, [float(s) for s in scores])[0, 1], abs=1e-5)
    assert found.scores["spearman"] == pytest.approx(spearman(cosines, [4.5, 0, 5, 1.5, 3]), abs=1e-9)
