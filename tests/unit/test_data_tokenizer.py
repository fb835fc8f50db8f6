"""The tokenizer: the same text gives the same file, any text round-trips, and what cannot be used is named."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.tokenizer import END_OF_TEXT, Tokenizer
from burnish.errors import MissingExtra, UserError

TEXTS = [
    "It was a truth which Anne could not deny. " * 8,
    "Sense and sensibility, pride and prejudice\n" * 8,
    "ünïcödé 語",
]
TRAINED = Tokenizer.train(TEXTS, 300)


def test_vocabulary_end_of_text_and_order():
    assert TRAINED.vocab == 300
    assert TRAINED.eos == 0
    assert json.loads(TRAINED.to_json())["model"]["vocab"][END_OF_TEXT] == 0


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_same_text_gives_the_same_file_in_another_process(hash_seed):
    program = (
        "import sys, json; from burnish.data.tokenizer import Tokenizer; "
        "print(Tokenizer.train(json.loads(sys.argv[1]), 300).fingerprint)"
    )
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(TEXTS)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == TRAINED.fingerprint
    assert Tokenizer.train([*TEXTS, "more and more"], 300).fingerprint != TRAINED.fingerprint


@settings(deadline=None)
@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_text_round_trips_and_counts_its_bytes(texts):
    encoded = list(TRAINED.encode_documents(texts))
    assert len(encoded) == len(texts)
    for text, (ids, size) in zip(texts, encoded, strict=True):
        assert TRAINED.decode(ids) == text
        assert TRAINED.count_bytes(ids) == size == len(text.encode())
        assert TRAINED.encode(text) == ids.tolist()
        assert TRAINED.eos not in ids


def test_text_that_spells_a_special_token_is_plain_text():
    ids = TRAINED.encode(f"a{END_OF_TEXT}b")
    assert 0 not in ids
    assert TRAINED.decode(ids) == f"a{END_OF_TEXT}b"
    assert TRAINED.decode([0, *ids, 0]) == f"a{END_OF_TEXT}b"
    assert TRAINED.count_bytes([0, *ids, 0]) == len(END_OF_TEXT) + 2


def test_documents_larger_than_one_batch_keep_their_order(monkeypatch):
    monkeypatch.setattr("burnish.data.tokenizer._BATCH_CHARACTERS", 10)
    texts = [str(n) * (n % 7) for n in range(40)]
    assert [TRAINED.decode(ids) for ids, _ in TRAINED.encode_documents(texts)] == texts


def test_saved_and_read_again(tmp_path):
    TRAINED.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        again = Tokenizer.load(path)
        assert (again.fingerprint, again.eos, again.vocab) == (TRAINED.fingerprint, 0, 300)
    assert (
        hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).digest()
        == hashlib.sha256(TRAINED.to_json().encode()).digest()
    )
    assert Tokenizer.load(tmp_path, eos=5).eos == 5
    assert Tokenizer.load(tmp_path, eos=5).fingerprint != TRAINED.fingerprint


def test_padding_and_truncation_in_a_file_are_not_applied(tmp_path):
    content = json.loads(TRAINED.to_json())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": END_OF_TEXT,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    again = Tokenizer.load(tmp_path)
    for text in (TEXTS[0], "An"):  # longer than the limit, shorter than the padding
        assert again.encode(text) == TRAINED.encode(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such tokenizer file"),
        (b"{}", "not a tokenizer.json"),
        (b"", "not a tokenizer.json"),
        (b"\xff\xfe\x00", "not a tokenizer.json"),
        (b'{"text": "a"}\n', "not a tokenizer.json"),
        (b"[1, 2]", "not a tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content, message):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_end_of_text_asks_for_it(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(TRAINED.to_json().replace(END_OF_TEXT, "<nothing>"))
    with pytest.raises(UserError, match=r"tokenizer\.json: has none of the end-of-text tokens .*; set model\.eos"):
        Tokenizer.load(path)
    assert Tokenizer.load(path, eos=0).eos == 0
    with pytest.raises(UserError, match=r"model\.eos 300 is outside .*0\.\.299"):
        Tokenizer.load(path, eos=300)


def test_vocabulary_sizes_are_checked_and_both_named():
    TRAINED.check_vocab(300)
    TRAINED.check_vocab(512)
    with pytest.raises(UserError, match=r"has 300 tokens, model\.vocab is 299; set model\.vocab to 300 or more"):
        TRAINED.check_vocab(299)
    with pytest.raises(UserError, match=r"model\.vocab 256 is too small .*; 257 and more work"):
        Tokenizer.train(TEXTS, 256)
    assert Tokenizer.train(["ab"], 1000).vocab < 1000


def test_without_its_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'burnish\[train\]'"):
        Tokenizer.train(TEXTS, 300)
