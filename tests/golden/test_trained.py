"""The trained quickstart weights kept as a fixture: they still read, score and write as they did."""

from pathlib import Path

import pytest
import torch

from burnish.data.packing import Corpus, Rows
from burnish.data.sampler import eval_batches
from burnish.data.text import Texts
from burnish.data.tokenizer import Tokenizer
from burnish.load.model import load_folder
from burnish.serve.prompts import continued
from burnish.train.evaluate import evaluate
from burnish.train.loss import LanguageModelLoss

FOLDER = Path(__file__).parents[1] / "fixtures" / "quickstart"
BITS_PER_BYTE = 1.8672  # of the first 60,000 characters, read as one document
GREEDY = "It was a truth which Anne could not be in the\nfirst of the country, and the country, and the country,"


def test_bits_per_byte_on_the_unseen_novel() -> None:
    model, config = load_folder(FOLDER, dtype=torch.float32)
    tokenizer = Tokenizer.load(FOLDER, config.eos)
    text = next(Texts.open(["asset:austen/persuasion"]).documents())[:60_000]
    corpus = Corpus.of([tokenizer.encode(text)], tokenizer.eos, [len(text.encode())])
    score = evaluate(LanguageModelLoss(model), eval_batches(Rows(corpus, 256), 8))
    assert score.bits_per_byte(corpus.total_bytes) == pytest.approx(BITS_PER_BYTE, abs=2e-3)


def test_greedy_text() -> None:
    settings = {"max_new_tokens": 24, "temperature": 0.0}
    assert continued(FOLDER, ["It was a truth which Anne could not"], settings) == [GREEDY]
