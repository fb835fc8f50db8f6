"""Letters: the one kind of question that the drafts of these benches learn to foresee, and where their answers come from.

`.venv/bin/python bench/letters.py` writes what SmolLM2 answers, which is the asset that the recipe distill-draft learns from.
"""

from __future__ import annotations

from pathlib import Path

from burnish.serve.answers import write_answers
from burnish.serve.opening import Settings

ASSET = Path(__file__).resolve().parents[1] / "src" / "burnish" / "assets" / "chat" / "smollm2_letters.jsonl"
NEW = 128  # tokens of an answer at most
NAMES = (
    *("Anna", "Mr. Brown", "Maria", "Tom", "Dr. Weber", "Laura", "David", "Mrs. Green"),
    *("Paul", "Sophie", "Mr. Novak", "Julia", "Peter", "Ms. Rossi", "Martin", "Elena"),
    *("John", "Mr. Smith", "Emma", "Jack", "Dr. Klein", "Sarah", "Michael", "Mrs. White"),
    *("James", "Lucy", "Mr. Fischer", "Alice", "Robert", "Ms. Moreau", "Daniel", "Hannah"),
    *("Mark", "Mr. Jones", "Linda", "Ben", "Dr. Patel", "Rachel", "Thomas", "Mrs. Black"),
    *("George", "Nina", "Mr. Larsen", "Helen", "Simon", "Ms. Garcia", "Andrew", "Eva"),
    *("Chris", "Mr. Taylor", "Karen", "Sam", "Dr. Meyer", "Monica", "Stephen", "Mrs. Young"),
    *("Henry", "Ruth", "Mr. Silva", "Grace", "Philip", "Ms. Olsen", "Edward", "Irene"),
)
NEW_NAMES = ("Clara", "Mr. Keller", "Oliver", "Mrs. Santos")
OCCASIONS = (
    "declines an invitation to dinner",
    "asks to move a meeting to Friday",
    "thanks for a book",
    "says that a parcel has not arrived",
    "asks for the price of a used bicycle",
    "confirms an appointment on Monday",
    "congratulates on a new job",
    "asks for a day off",
    "apologises for being late",
    "invites to a birthday party",
    "asks for help with a garden",
    "reports a broken heater",
    "sends the notes of a meeting",
    "asks when the library opens",
    "offers to lend a car",
    "cancels a music lesson",
)
NEW_OCCASIONS = (
    "accepts an invitation to a wedding",
    "asks to return a pair of shoes",
    "thanks for a weekend at the lake",
    "reports a lost key",
    "wishes a happy new year",
    "asks for a copy of a bill",
)


def question(name: str, occasion: str) -> str:
    """One of them, as a user writes it."""
    return f"Write a short email to {name} that {occasion}."


def learned() -> list[str]:
    """What the drafts have seen the answers of."""
    return [question(name, occasion) for name in NAMES for occasion in OCCASIONS]


def new_names() -> list[str]:
    """Occasions that were seen, and people who were not."""
    return [question(name, occasion) for occasion in OCCASIONS for name in NEW_NAMES]


def new_occasions() -> list[str]:
    """Neither occasion nor person was seen."""
    return [question(name, occasion) for occasion in NEW_OCCASIONS for name in NEW_NAMES]


if __name__ == "__main__":
    settings = Settings(2**30, rows=32, weights="q4", runner="onnxruntime", threads=2)
    print(ASSET, write_answers("smollm2", learned(), ASSET, settings, NEW), "tokens")
