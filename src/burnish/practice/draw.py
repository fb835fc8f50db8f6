"""Draw: which questions a test asks, in what order, and how their options are shuffled. The seed decides, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from burnish.errors import UserError, nearest
from burnish.practice.bank import Bank
from burnish.practice.question import LETTERS, Question
from burnish.records import Frozen

SHORT, MIXED, FULL = 6, 12, 50  # questions of a short set, a mixed and a full-length test
TESTS = (1, 2)


class Posed(Frozen):
    """A question as it is asked: `order[k]` is the option that stands at the k-th letter."""

    id: str
    order: tuple[int, ...]


def posed(questions: Sequence[Question], chance: Random) -> tuple[Posed, ...]:
    """The questions in an order of chance, with the options of each in another."""
    mixed = chance.sample(list(questions), len(questions))
    return tuple(Posed(id=one.id, order=tuple(chance.sample(range(len(LETTERS)), len(LETTERS)))) for one in mixed)


def short(bank: Bank, subject: str, seed: int) -> tuple[Posed, ...]:
    """A short set on one subject, all of it where it has fewer. Raises UserError for a subject without questions."""
    known = bank.subjects()
    if subject not in known:
        raise UserError(f"--subject {subject}: {nearest(subject, known)}")
    chance = Random(f"short {subject} {seed}")
    among = [question for question in bank.questions if question.subject == subject]
    return posed(chance.sample(among, min(SHORT, len(among))), chance)


def mixed(bank: Bank, seed: int) -> tuple[Posed, ...]:
    """A mixed test: no subject twice before each has come once; heavier ones are likelier where not all can come."""
    chance = Random(f"mixed {seed}")
    weights = {name: subject.weight for name, subject in bank.subjects().items()}
    # Efraimidis and Spirakis 2006: the largest u^(1/w) are a weighted sample without replacement.
    order = sorted(weights, key=lambda name: chance.random() ** (1 / weights[name]), reverse=True)
    left = {name: chance.sample(rows, len(rows)) for name, rows in by_subject(bank).items()}
    found: list[Question] = []
    while len(found) < MIXED and any(left.values()):
        found += [left[name].pop() for name in order if left[name]][: MIXED - len(found)]
    return posed(found, chance)


def full(bank: Bank, test: int, seed: int) -> tuple[Posed, ...]:
    """A full-length test. The tests share no question whatever the seeds: the seed shuffles, the bank decides who is in.

    Raises UserError for another test than there is, and where a subject has too few questions for its share.
    """
    if test not in TESTS:
        raise UserError(f"--full {test}: use {' or '.join(map(str, TESTS))}")
    share = shares({name: subject.weight for name, subject in bank.subjects().items()}, FULL)
    found: list[Question] = []
    for name, rows in by_subject(bank).items():
        if len(rows) < (needed := share[name] * len(TESTS)):
            raise UserError(
                f"--full {test}: subject {name!r} has {len(rows)} questions, {len(TESTS)} tests take {needed}; "
                "use --mixed or --subject"
            )
        among = Random(f"full {name}").sample(rows, len(rows))
        found += among[(test - 1) * share[name] : test * share[name]]
    return posed(found, Random(f"full {test} {seed}"))


def again(bank: Bank, identities: Sequence[str], seed: int) -> tuple[Posed, ...]:
    """Those of the named questions that the bank has."""
    return posed([q for q in map(bank.find, identities) if q is not None], Random(f"again {seed}"))


def by_subject(bank: Bank) -> dict[str, list[Question]]:
    """The questions of each subject, in the order of their names, so that moving one in its file moves nothing here."""
    rows = sorted(bank.questions, key=lambda question: question.id)
    return {name: [question for question in rows if question.subject == name] for name in bank.subjects()}


def shares(weights: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` divided by weight into whole numbers, the rest to the largest remainders (of equal ones the first)."""
    whole = sum(weights.values())
    found = {name: weight * total // whole for name, weight in weights.items()}
    rest = sorted(weights, key=lambda name: -(weights[name] * total % whole))
    return found | {name: found[name] + 1 for name in rest[: total - sum(found.values())]}
