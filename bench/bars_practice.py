"""Bars of the practice test."""

from __future__ import annotations

from bar import rows

COMMAND = "bench/practice_bank.py"
PRACTICE = (
    *rows(
        "practice",
        "practice_bank",
        COMMAND,
        ("questions", "questions", 110, None, ""),
        ("... of the subject that has fewest", "fewest_of_a_subject", 6, None, ""),
        ("the letter that is right least often", "key_place_least_percent", 20, None, "%"),
        ("the letter that is right most often", "key_place_most_percent", None, 30, "%"),
        ("the right option is the longest", "right_is_longest_percent", None, 35, "%"),
        ("words that the two most similar questions share", "most_alike_percent", None, 60, "%"),
        ("options without a reason", "options_without_reason", 0, 0, ""),
        ("questions whose claim is none", "claims_unknown", 0, 0, ""),
    ),
    *rows(
        "practice",
        "practice_reader",
        COMMAND,
        ("a reader without the key answers otherwise", "disagreement_percent", None, 5, "%"),
        ("... questions not read", "unread", 0, 0, ""),
    ),
    *rows(
        "practice",
        "prove_all",
        "bench/prove_all.py",
        ("all claims measured, the slower of two passes", "seconds", None, 480, "s"),
        ("... claims", "claims", 13, None, ""),
        ("... claims that did not hold", "not_held", 0, 0, ""),
        ("... passes whose verdicts differ from the first's", "verdicts_changed", 0, 0, ""),
    ),
    *rows(
        "practice",
        "newcomer",
        "bench/newcomer.py",
        ("a newcomer's first commands in a clean clone: failed", "failed", 0, 0, ""),
        ("... scripts/demo, environment and all", "demo.seconds", None, None, "s"),
        ("... burnish prove", "prove.seconds", None, None, "s"),
        ("... own text", "own_text.seconds", None, None, "s"),
        ("... own pictures", "own_pictures.seconds", None, None, "s"),
    ),
)
