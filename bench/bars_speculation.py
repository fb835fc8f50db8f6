"""Bars of speculative decoding."""

from __future__ import annotations

from bar import rows

SPECULATION = rows(
    "speculation",
    "speculation",
    "bench/speculation.py",
    ("exact mode, 200 prompts by 3 drafts by 1 and 8 at once: requests", "greedy.requests", 1200, None, ""),
    ("the same: requests with other tokens than without a draft", "greedy.different", 0, 0, ""),
    ("drawn at 3 temperatures, whole, top-k, top-p: beyond 99.9 % of the target's own", "sampled.beyond", 0, 0, ""),
    ("the same: total variation for that of as many draws of the target, most", "sampled.most", None, None, "x"),
)
SPECULATION += rows(
    "speculation",
    "speculation_gate",
    "bench/speculation_gate.py",
    ("acceptance 0 to 1 by cost 0.05 to 0.5, 55 cells: time for plain, worst", "worst", None, 1.03, "x"),
    ("a draft of random weights: time for plain", "random", None, 1.03, "x"),
    ("cells with 1.25x to gain: share of it that is gained, least", "least_share", None, None, ""),
)
SPECULATION += rows(
    "speculation",
    "speculation_ngram",
    "bench/speculation_ngram.py",
    ("SmolLM2 in 4-bit blocks, n-grams, text that repeats: times plain", "q4.repeated.measured", 1.4, None, "x"),
    ("the same: the formula off by", "q4.repeated.off", None, 10, "%"),
    ("the same, as the gate has it", "q4.gated", 1.4, None, "x"),
    ("the same in float32: times plain", "float.repeated.measured", 1.4, None, "x"),
    ("the same: the formula off by", "float.repeated.off", None, 10, "%"),
    ("the same in 4-bit blocks: a step that verifies 3 guesses, in plain steps", "q4.verify.3", None, None, ""),
    ("the same in 4-bit blocks: a step that verifies 7 guesses, in plain steps", "q4.verify.7", None, None, ""),
)
SPECULATION += rows(
    "speculation",
    "speculation_draft",
    "bench/speculation_draft.py",
    ("distilled draft, letters to new people: guesses that stand", "people.acceptance", None, None, ""),
    ("the same: times plain", "people.measured", 1.4, None, "x"),
    ("the same: the formula off by", "people.off", None, 10, "%"),
    ("letters of new occasions: guesses that stand", "occasions.acceptance", None, None, ""),
    ("a novel, which is not its field: guesses that stand", "novel.acceptance", None, None, ""),
    ("the same: guesses a round that are advised", "novel.length", 0, 0, ""),
    ("the same: acceptance that would be needed", "novel.least_acceptance", None, None, ""),
    ("the same: time of the engine for plain", "novel.gated_time", None, 1.03, "x"),
)
