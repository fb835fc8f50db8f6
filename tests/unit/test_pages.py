"""Pages of the pool: none is lost or held twice, known beginnings are found, neighbours are preferred."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.serve.pages import ROOT, Full, Pages


def fill(pages: Pages, tokens: list[int]) -> list[int]:
    """Pages for tokens, found or taken and filled, as a sequence does it."""
    held = pages.match(tokens)
    mark = pages.mark(held[-1]) if held else ROOT
    while len(held) < pages.needed(len(tokens)):
        number = len(held)
        held.append(pages.take(held[-1] if held else None, pages.needed(len(tokens)) - number))
        part = tokens[number * pages.size : (number + 1) * pages.size]
        if len(part) == pages.size:
            mark = pages.fill(held[-1], mark, part)
    return held


def check_counts(pages: Pages, held: list[list[int]]) -> None:
    counts = [0] * pages.count
    for sequence in held:
        assert len(set(sequence)) == len(sequence)
        for page in sequence:
            counts[page] += 1
    assert pages._held == counts
    assert pages.free == counts.count(0)
    assert pages._empty_count == sum(pages._empty)
    assert all(counts[page] == 0 for page in pages._idle)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=30)), max_size=40))
@settings(max_examples=150, deadline=None)
def test_no_page_is_lost_and_none_has_two_contents(steps):
    pages, held, texts = Pages(12, 3), [], []
    for leaves, tokens in steps:
        if leaves and held:
            pages.release(held.pop(len(tokens) % len(held)))
            texts.pop(len(tokens) % len(texts))
        elif pages.needed(len(tokens)) <= pages.free:
            held.append(fill(pages, tokens))
            texts.append(tokens)
        check_counts(pages, held)
    content: dict[int, tuple[int, ...]] = {}
    for tokens, own in zip(texts, held, strict=True):
        for number, page in enumerate(own):
            read = tuple(tokens[: (number + 1) * pages.size])
            if len(read) == (number + 1) * pages.size:
                assert content.setdefault(page, read) == read


def test_a_beginning_is_found_again_until_its_room_is_needed():
    pages = Pages(4, 2)
    first = fill(pages, [1, 2, 3, 4, 5])
    pages.release(first)
    assert pages.free == 4
    assert pages.match([1, 2, 3, 4, 9, 9, 9]) == first[:2]
    assert pages.match([1, 2, 3, 4]) == first[:1]  # the last token is left to compute
    assert pages.match([9, 2, 3, 4, 5]) == []
    pages.release(first[:2])
    pages.release(first[:1])
    other = fill(pages, [7, 7, 7, 7, 7, 7, 7, 7])
    assert sorted(other) == [0, 1, 2, 3]
    with pytest.raises(Full):
        pages.take()
    pages.release(other)
    assert pages.match([1, 2, 3]) == []


def check_what_came_before() -> None:
    """The named check: a page is not found after other tokens than its own."""
    pages = Pages(8, 2)
    fill(pages, [1, 2, 5, 6, 0])
    assert pages.match([5, 6, 0]) == []
    assert pages.match([3, 4, 5, 6, 0]) == []


def test_the_same_tokens_after_others_are_not_the_same_page():
    check_what_came_before()


def test_tails_go_before_beginnings():
    pages = Pages(3, 2)
    whole = fill(pages, [1, 2, 3, 4, 5, 6])
    pages.release(whole)
    pages.take()
    assert pages.match([1, 2, 3, 4, 5]) == whole[:2]


def test_a_sequence_gets_neighbours_and_others_leave_it_room():
    pages = Pages(32, 4)
    one, two = [pages.take()], [pages.take()]
    for _ in range(7):
        one.append(pages.take(one[-1]))
        two.append(pages.take(two[-1]))
    for held in (one, two):
        assert held == list(range(held[0], held[0] + 8))


def test_a_text_that_comes_again_and_goes_on_otherwise_lies_in_one_piece():
    pages = Pages(16, 2)
    first = fill(pages, [1, 2, 3, 4, 5, 6, 7, 8])
    other = fill(pages, [9, 9, 9, 9])
    pages.release(first)
    pages.release(other)
    again = pages.match([1, 2, 3, 4, 0])
    assert again == first[:2]
    for _ in range(3):
        again.append(pages.take(again[-1]))
    assert again == list(range(first[0], first[0] + 5))
    assert pages.free == 16 - 5
    assert pages.match([1, 2, 3, 4, 5, 6, 7]) == first[:2]  # what came after it is let go
    assert pages.match([9, 9, 9]) == other[:1]  # what others wrote is not


def test_texts_lie_in_one_piece_when_the_pool_is_full_of_others_and_what_is_often_read_stays():
    pages, shared = Pages(64, 2), [1, 2, 3, 4]
    for number in range(40):
        found = pages.match([*shared, 0])
        assert len(found) == (2 if number else 0)
        held = fill(pages, [*shared, *range(1000 * number + 10, 1000 * number + 10 + 32)])
        own = held[len(found) :]
        assert own == list(range(own[0], own[0] + len(own))), number
        pages.release(found)
        pages.release(held)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_text_alone_lies_in_one_piece_whatever_the_pool_is_full_of(lengths):
    pages = Pages(40, 1)
    for number, length in enumerate(lengths):
        held = fill(pages, [number] * length)
        assert held == list(range(held[0], held[0] + length))
        pages.release(held)


def test_what_was_promised_to_one_is_not_begun_in_by_another():
    pages = Pages(30, 1)
    pages.release(fill(pages, list(range(30))))
    one, two = [pages.take(ahead=15)], [pages.take(ahead=15)]
    for _ in range(14):
        for held in (one, two):
            held.append(pages.take(held[-1], 15 - len(held)))
    for held in (one, two):
        assert held == list(range(held[0], held[0] + 15))


def test_a_continuation_that_somebody_reads_stays():
    pages = Pages(16, 2)
    first = fill(pages, [1, 2, 3, 4, 5, 6])
    begun = pages.match([1, 2, 3, 4, 0])
    assert pages.take(begun[-1]) not in first
    assert pages.match([1, 2, 3, 4, 5, 6, 7]) == first


@pytest.mark.sabotage
def test_sabotage_a_page_known_by_its_own_tokens_alone():
    def alone(self, page, before, tokens):
        return fill_page(self, page, ROOT, tokens)

    fill_page = Pages.fill
    with mock.patch.object(Pages, "fill", alone), pytest.raises(AssertionError):
        check_what_came_before()
