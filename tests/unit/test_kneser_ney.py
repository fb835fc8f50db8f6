"""The bigram baseline is a distribution, follows its formula, and sees the pairs a model is scored on."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from burnish.data import kneser_ney
from burnish.data.packing import Corpus, Rows

VOCAB = 9


def random_corpus(seed, documents=30, vocab=VOCAB - 1):
    draw = np.random.Generator(np.random.PCG64(seed))
    texts = [draw.zipf(1.6, int(n)) % vocab for n in draw.integers(0, 12, documents)]
    return Corpus.of([t.tolist() for t in texts], 0, [len(t) for t in texts])


def test_every_context_has_a_distribution_even_one_never_seen():
    model = kneser_ney.fit(random_corpus(0), VOCAB)
    assert model.backoff[VOCAB - 1] == 1.0  # the last id occurs nowhere
    for context in range(VOCAB):
        probabilities = model.probabilities(context)
        assert probabilities.shape == (VOCAB,)
        assert probabilities.min() > 0
        assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert model.probabilities(VOCAB - 1).tolist() == model.unigram.tolist()


def test_pair_by_pair_equals_the_whole_distribution():
    model = kneser_ney.fit(random_corpus(1), VOCAB)
    contexts, words = np.divmod(np.arange(VOCAB * VOCAB), VOCAB)
    table = np.stack([model.probabilities(c) for c in range(VOCAB)])
    assert np.exp(model.log_probabilities(contexts, words)).reshape(VOCAB, VOCAB) == pytest.approx(table, rel=1e-12)


def test_the_formula_worked_by_plain_counting():
    vocab = 31
    corpus = random_corpus(2, vocab=30)
    docs = [corpus.document(d).tolist() for d in range(corpus.documents)]
    pairs = Counter(p for doc in docs for p in pairwise(doc))
    followers = Counter(w for _, w in pairs)

    def discount(counts):
        n = Counter(counts)
        return n[1] / (n[1] + 2 * n[2])

    d, d1 = discount(pairs.values()), discount(followers.values())
    assert 0 < d < 1
    assert 0 < d1 < 1
    model = kneser_ney.fit(corpus, vocab)
    for context in {c for c, _ in pairs}:
        total = sum(n for (c, _), n in pairs.items() if c == context)
        types = sum(1 for c, _ in pairs if c == context)
        for word in range(vocab):
            low = max(followers[word] - d1, 0) / len(pairs) + d1 * len(followers) / len(pairs) / vocab
            high = max(pairs[context, word] - d, 0) / total + d * types / total * low
            assert model.probabilities(context)[word] == pytest.approx(high, rel=1e-12)


def test_scored_pairs_are_the_pairs_of_packed_rows():
    corpus = random_corpus(3)
    contexts, words = kneser_ney.scored_pairs(corpus)
    packed = Counter(
        (int(a), int(b)) for row in Rows(corpus, 7) for a, b in zip(row.ids, row.labels, strict=True) if b >= 0
    )
    assert Counter(zip(contexts.tolist(), words.tolist(), strict=True)) == packed
    assert len(words) == corpus.predicted


def test_bits_per_byte_and_perplexity_are_the_same_likelihood():
    train, heldout = random_corpus(4, 200), random_corpus(5)
    model = kneser_ney.fit(train, VOCAB)
    bits = kneser_ney.bits_per_byte(train, heldout, VOCAB)
    assert 0.5 < bits < 2 * math.log2(VOCAB)
    per_token = math.log2(kneser_ney.perplexity(model, heldout))
    assert bits * heldout.total_bytes == pytest.approx(per_token * heldout.predicted, rel=1e-12)
    nats = sum(
        -math.log(model.probabilities(int(c))[w]) for c, w in zip(*kneser_ney.scored_pairs(heldout), strict=True)
    )
    assert bits == pytest.approx(nats / math.log(2) / heldout.total_bytes, rel=1e-10)


def test_a_pattern_that_always_holds_is_learned():
    corpus = Corpus.of([[1, 2] * 50], 0, [100])
    model = kneser_ney.fit(corpus, 3)
    assert model.probabilities(1)[2] > 0.97


def test_counts_without_singletons_stay_positive():
    corpus = Corpus.of([[1]] * 3, 0, [1] * 3)
    model = kneser_ney.fit(corpus, 4)
    for context in range(4):
        assert model.probabilities(context).min() > 0
        assert model.probabilities(context).sum() == pytest.approx(1.0)


def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="below 4"):
        kneser_ney.fit(Corpus.of([[5]], 0), 4)
