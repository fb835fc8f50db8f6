"""Calibration text of a user's own: texts, conversations, short and noisy ones, and what judged text leaves of a range."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.compress.representative import Outside, check_likely, check_words, outside, surprise
from burnish.compress.sample_files import cut, evenly, read_samples
from burnish.compress.samples import Samples
from burnish.errors import UserError
from compressing import TEXT, rows, subject


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(*sources: str, count: int = 8, length: int = 32):
    return read_samples(subject().checkpoint, sources, count, length)


@given(st.lists(st.lists(st.integers(0, 9), max_size=40), max_size=8), st.integers(2, 12))
def test_pieces_hold_every_token_but_lonely_ones(documents, length):
    pieces = cut(documents, length)
    assert all(2 <= len(piece) <= length for piece in pieces)
    lonely = sum(len(ids) % length == 1 for ids in documents)
    assert sum(map(len, pieces)) == sum(map(len, documents)) - lonely


@given(st.integers(1, 50), st.integers(1, 50))
def test_rows_are_spread_evenly(there, count):
    pieces = [[k, k] for k in range(there)]
    chosen = [piece[0] for piece in evenly(pieces, count)]
    assert len(chosen) == min(there, count)
    assert chosen == sorted(set(chosen))
    if count < there:
        gaps = [b - a for a, b in itertools.pairwise(chosen)]
        assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_rows_are_no_longer_than_what_was_trained_on():
    from dataclasses import replace

    from burnish.compress.sample_files import row_length

    seen = subject().checkpoint
    assert row_length(replace(seen, config=dict(seen.config) | {"trained_length": 48}), 512) == 48
    assert row_length(replace(seen, config=dict(seen.config) | {"trained_length": 4096}), 9999) == 512
    assert row_length(seen, 40) == 40


def test_texts_are_read_as_prompts_and_padded(tmp_path):
    Path("texts.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in ("It was.", "She was a lady of " * 9))
    )
    samples, notes = read("texts.jsonl")
    tokenizer = subject().checkpoint.tokenizer
    assert tokenizer is not None
    assert samples.ids.shape[1] == 32
    assert int(samples.mask[0].sum()) < 32
    assert samples.mask[1].all()
    assert len(notes) == 1, "a handful of rows is told"
    again, _ = read("texts.jsonl")
    assert again.fingerprint == samples.fingerprint


def test_a_text_shorter_than_a_row_is_told_and_an_empty_one_refused():
    Path("short.txt").write_text("It was a truth")
    samples, notes = read("short.txt")
    assert samples.tokens < 32
    assert "less than one row of 32" in notes[0]
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text("  \n ")
    assert cut([[5]], 8) == []
    for name, said in (
        ("empty.txt", "empty"),
        ("blank.txt", "white space"),
        ("no.txt", "no such"),
    ):
        with pytest.raises(UserError, match=said):
            read(name)


def test_conversations_are_written_in_the_models_template():
    from dataclasses import replace

    lines = [
        {"messages": [{"role": "user", "content": "Who is Emma?"}, {"role": "assistant", "content": "A lady."}]}
    ] * 3
    Path("chat.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError, match="no chat template"):
        read("chat.jsonl")
    files = subject().checkpoint.tokenizer
    assert files is not None
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with_template = replace(subject().checkpoint, tokenizer=replace(files, template=template))
    samples, _ = read_samples(with_template, ["chat.jsonl"], 8, 64)
    from burnish.compress.sample_files import decoder_tokenizer

    text = decoder_tokenizer(with_template).decode(samples.ids[0][samples.mask[0]].tolist())
    assert "user: Who is Emma?\nassistant: A lady." in text


def test_noise_is_refused_and_another_language_told():
    model, vocab = subject().model, subject().config.vocab
    real = surprise(model, rows(6))
    draw = random.Random(0)
    noise = surprise(model, Samples.of([[draw.randrange(vocab) for _ in range(64)] for _ in range(6)]))
    assert check_likely(real, real, vocab, "emma.txt") == ()
    with pytest.raises(UserError, match=r"noise\.txt: noise to this model"):
        check_likely(noise, real, vocab, "noise.txt")
    (note,) = check_likely(real + 2.5, real, vocab, "other.txt")
    assert note.startswith("other.txt: unlike the judged text")
    assert check_likely(9.0, 9.0, vocab, "x") == (), "of a model that knows nothing, nothing can be said"


def test_surprise_counts_what_has_a_token_before_it():
    """Padding between two real tokens parts them."""
    samples = rows(2)
    mask = samples.mask.clone()
    mask[0, 30:] = False
    expected = surprise(subject().model, Samples.of([samples.ids[0, :30].tolist(), samples.ids[1].tolist()]))
    assert surprise(subject().model, Samples(samples.ids, mask)) == pytest.approx(expected, rel=1e-5)


def test_an_encoders_noise_is_told_by_its_words():
    assert check_words(["a long sentence"], ["another sentence"], (3, 3), "x") == ()
    (note,) = check_words(["qzx vkj"], ["another sentence"], (7, 3), "noise.txt")
    assert "1.0 characters a token against 5.3" in note


def test_what_leaves_a_range_is_told_worst_first():
    calibrated = {"a": (-1.0, 1.0), "b": (0.0, 4.0), "c": (-2.0, 2.0), "d": (1.0, 1.0)}
    judged = {"a": (-1.0, 3.0), "b": (-1.0, 4.0), "c": (-1.0, 1.0), "d": (2.0, 2.0), "e": (0.0, 9.0)}
    assert outside(calibrated, judged) == (Outside("d", 1.0), Outside("a", 0.5), Outside("b", 0.2))


def test_tensors_that_leave_their_calibrated_range_are_named():
    from types import SimpleNamespace

    from burnish.compress.judged_ranges import ranges_in, told

    model, names = subject().model, ["layers.0.attention.q", "layers.3.mlp.down"]
    short = Samples.of([rows(2).ids[0, :20].tolist(), rows(2).ids[1].tolist()])
    seen = ranges_in(model, names, short, rows=2)
    apart = [ranges_in(model, names, Samples.of([short.ids[k][short.mask[k]].tolist()])) for k in (0, 1)]
    for name in names:
        assert seen[name][0] == pytest.approx(min(one[name][0] for one in apart), rel=1e-4), "padding reached a range"
        assert seen[name][1] == pytest.approx(max(one[name][1] for one in apart), rel=1e-4)
    whole = [SimpleNamespace(name=name, low=low * 1.001, high=high * 1.001) for name, (low, high) in seen.items()]
    assert told(SimpleNamespace(inputs=whole), model, short) == ()
    whole[1].high *= 0.5
    (note,) = told(SimpleNamespace(inputs=whole), model, short)
    assert note.startswith("1 of 2 tensors leave their calibrated range")
    assert "layers.3.mlp.down" in note
    assert told(SimpleNamespace(), model, short) == ()


def test_a_whole_novel_is_more_than_is_asked_for():
    samples, notes = read(TEXT, count=4)
    assert samples.ids.shape == (4, 32)
    assert notes == ()


@pytest.mark.sabotage
def test_sabotage_a_template_that_is_passed_over_is_noticed(monkeypatch):
    import burnish.compress.sample_files as files

    monkeypatch.setattr(files, "_holds_conversations", lambda path: False)
    with pytest.raises((AssertionError, UserError)):
        test_conversations_are_written_in_the_models_template()
