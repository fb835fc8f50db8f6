"""Kneser-Ney bigram: the baseline a trained language model must beat, on the same tokens.

Interpolated Kneser-Ney with one absolute discount an order (Ney, Essen, Kneser 1994; Chen & Goodman 1998, section 2.7):
    P(w | c) = max(n(c, w) - D, 0) / n(c) + D types(c) / n(c) * P1(w)
    P1(w)    = max(m(w) - D1, 0) / M     + D1 types / M / vocab
n counts pairs, types(c) the different successors of c, m(w) the different predecessors of w, M their sum. Each discount
is n1 / (n1 + 2 n2) of the counts it is taken from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.data.batch import Ids
from burnish.data.packing import Corpus

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bigram:
    """A fitted model: `discounted[i]` is the first term of P for the pair `pairs[i]` = c * vocab + w (sorted)."""

    vocab: int
    pairs: Ids
    discounted: Floats
    backoff: Floats  # [vocab], the weight of P1 after each context; 1 after one never seen
    unigram: Floats  # [vocab], P1

    def probabilities(self, context: int) -> Floats:
        """P(. | context), float64 [vocab]; sums to 1."""
        low, high = np.searchsorted(self.pairs, [context * self.vocab, (context + 1) * self.vocab])
        result = self.backoff[context] * self.unigram
        result[self.pairs[low:high] - context * self.vocab] += self.discounted[low:high]
        return np.asarray(result, dtype=np.float64)

    def log_probabilities(self, contexts: Ids, words: Ids) -> Floats:
        """Natural log of P(word | context), pair by pair."""
        wanted = contexts * self.vocab + words
        at = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        seen = np.where(self.pairs[at] == wanted, self.discounted[at], 0.0)
        return np.asarray(np.log(seen + self.backoff[contexts] * self.unigram[words]), dtype=np.float64)


def scored_pairs(corpus: Corpus) -> tuple[Ids, Ids]:
    """(contexts, words): each predicted token and the one before it, exactly the pairs packed rows are scored on."""
    lengths = corpus.lengths
    starts = np.cumsum(lengths) - lengths
    where = np.arange(int(lengths.sum())) + np.repeat(corpus.begins - starts, lengths)
    tokens = np.asarray(corpus.stream[where], dtype=np.int64)
    predicted = np.ones(len(tokens), dtype=bool)
    predicted[starts] = False
    if corpus.learned is not None:
        predicted &= corpus.learned[where]
    at = np.flatnonzero(predicted)
    return tokens[at - 1], tokens[at]


def fit(corpus: Corpus, vocab: int) -> Bigram:
    """Count and discount. Raises ValueError when a token is outside the vocabulary or there is no pair."""
    contexts, words = scored_pairs(corpus)
    if not len(words) or max(contexts.max(), words.max()) >= vocab:
        raise ValueError(f"a bigram of {vocab} tokens needs at least one pair, and every token below {vocab}")
    pairs, counts = np.unique(contexts * vocab + words, return_counts=True)
    first, second = pairs // vocab, pairs % vocab
    totals = np.bincount(contexts, minlength=vocab)
    types = np.bincount(first, minlength=vocab)
    discount = _discount(counts)
    backoff = np.where(totals > 0, discount * types / np.maximum(totals, 1), 1.0)
    return Bigram(
        vocab=vocab,
        pairs=pairs,
        discounted=np.maximum(counts - discount, 0.0) / totals[first],
        backoff=backoff,
        unigram=_continuation(np.bincount(second, minlength=vocab)),
    )


def perplexity(model: Bigram, heldout: Corpus) -> float:
    """exp of the mean negative log-likelihood per predicted token."""
    return float(np.exp(-model.log_probabilities(*scored_pairs(heldout)).mean()))


def bits_per_byte(train: Corpus, heldout: Corpus, vocab: int) -> float:
    """Bits that a bigram of `train` spends on `heldout`, divided by the UTF-8 bytes of its text."""
    nats = -fit(train, vocab).log_probabilities(*scored_pairs(heldout)).sum()
    return float(nats / np.log(2) / heldout.total_bytes)


def _continuation(predecessors: NDArray[np.int64]) -> Floats:
    """P1: how many contexts a token follows, discounted and mixed with the uniform distribution."""
    seen = predecessors[predecessors > 0]
    discount = _discount(seen)
    total = seen.sum()
    kept = np.maximum(predecessors - discount, 0.0) / total
    return np.asarray(kept + discount * len(seen) / total / len(predecessors), dtype=np.float64)


def _discount(counts: NDArray[np.int64]) -> float:
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once else 0.5  # no pair seen once: any value in (0, 1) keeps P positive
