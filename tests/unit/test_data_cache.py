"""The token cache: one tokenization for the same content, whole or rebuilt, safe with two writers."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from burnish.data import cache
from burnish.data.text import Texts
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError

LINES = ["one fish", "", "two fish, red fish", "blue fish ü"]
TOKENIZER = Tokenizer.train(LINES, 270)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": line}) for line in LINES))
    return Texts.open([path])


def entry(folder):
    (path,) = folder.glob("*")
    return path


def check(corpus):
    assert corpus.documents == len(LINES)
    assert [corpus.document(d).tolist() for d in range(4)] == [[0, *TOKENIZER.encode(line), 0] for line in LINES]
    assert corpus.text_bytes.tolist() == [len(line.encode()) for line in LINES]
    assert corpus.total_bytes == sum(len(line.encode()) for line in LINES)


def test_tokenized_once_into_a_memory_map(tmp_path, texts, monkeypatch):
    seen = []
    corpus = cache.tokenized(texts, TOKENIZER, tmp_path / "c", lambda done, total: seen.append((done, total)))
    check(corpus)
    assert isinstance(corpus.stream, np.memmap)
    assert corpus.stream.dtype == np.uint16
    assert not corpus.stream.flags.writeable
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    monkeypatch.setattr(Tokenizer, "encode_documents", None)  # the second time, nothing is tokenized
    check(cache.tokenized(texts, TOKENIZER, tmp_path / "c"))
    assert [stat.S_IMODE(p.stat().st_mode) & 0o400 for p in (tmp_path / "c").iterdir()] == [0o400]


def test_a_large_vocabulary_takes_four_bytes(tmp_path, texts, monkeypatch):
    monkeypatch.setattr(Tokenizer, "vocab", 65537)
    corpus = cache.tokenized(texts, TOKENIZER, tmp_path / "c")
    assert corpus.stream.dtype == np.uint32
    check(corpus)


def test_the_key_follows_text_tokenizer_and_format(tmp_path, texts, monkeypatch):
    keys = {cache.cache_key(texts, TOKENIZER), cache.cache_key(texts, Tokenizer.train(LINES, 271))}
    (tmp_path / "other.jsonl").write_text('{"text": "x"}')
    keys.add(cache.cache_key(Texts.open([tmp_path / "other.jsonl"]), TOKENIZER))
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    keys.add(cache.cache_key(texts, TOKENIZER))
    assert len(keys) == 4


def truncate(raw):
    return raw[:-3]


def flip(raw):
    return raw[:4100] + bytes([raw[4100] ^ 1]) + raw[4101:]


def grow(raw):
    return raw + b"\0"


def wrong_count(raw):
    return raw.replace(b'"documents": 4', b'"documents": 3')


def no_header(raw):
    return b"\0" * 4096 + raw[4096:]


def list_header(raw):
    return b"[1]".ljust(4096) + raw[4096:]


@pytest.mark.parametrize("damage", [truncate, flip, grow, wrong_count, no_header, list_header, lambda raw: b""])
def test_a_damaged_entry_is_found_and_rebuilt(tmp_path, texts, damage):
    cache.tokenized(texts, TOKENIZER, tmp_path / "c")
    path = entry(tmp_path / "c")
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert path.read_bytes() != good
    check(cache.tokenized(texts, TOKENIZER, tmp_path / "c"))
    assert entry(tmp_path / "c").read_bytes() == good


def test_bad_text_leaves_nothing_behind(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "fine"}\n{"no": 1}\n')
    with pytest.raises(UserError, match="line 2"):
        cache.tokenized(Texts.open([path]), TOKENIZER, tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, texts):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file/c: the token cache cannot be written .*BURNISH_CACHE"):
        cache.tokenized(texts, TOKENIZER, tmp_path / "file" / "c")


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    assert cache.cache_folder({"BURNISH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache.cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/burnish")
    assert cache.cache_folder({}) == Path("/home/x/.cache/burnish")
    monkeypatch.setenv("BURNISH_CACHE", "/later")
    assert cache.cache_folder() == Path("/later")


def _build(path, folder, barrier, results):
    barrier.wait()
    made = []
    corpus = cache.tokenized(Texts.open([path]), TOKENIZER, folder, lambda done, total: made.append(done))
    results.put((os.getpid(), corpus.stream.tolist(), len(made)))


def test_two_processes_at_once_both_get_the_whole(tmp_path, texts):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=_build, args=(texts.files[0], tmp_path / "c", barrier, results)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert found[0][0] != found[1][0]
    expected = [token for line in LINES for token in [0, *TOKENIZER.encode(line), 0]]
    assert found[0][1] == found[1][1] == expected
    entry(tmp_path / "c")  # exactly one file, no leftovers
    assert sorted(count for *_, count in found) == [0, len(LINES)]  # one did the work, the other waited


def test_what_killed_processes_left_is_cleared(tmp_path, texts):
    """Old and without its writer: both are needed, and nothing else in the folder is touched."""
    folder = tmp_path / "c"
    folder.mkdir()
    gone = next(n for n in range(4_000_000, 4_100_000) if not Path(f"/proc/{n}").exists())
    names = {
        "left": f".{'0a' * 8}.{gone}.{'1b' * 4}",
        "new": f".{'0b' * 8}.{gone}.{'1b' * 4}",
        "written": f".{'0c' * 8}.{os.getpid()}.{'1b' * 4}",
        "foreign": ".notes",
    }
    for name in names.values():
        (folder / name).write_bytes(b"half")
    for kept in ("left", "written", "foreign"):
        os.utime(folder / names[kept], (0, 0))
    check(cache.tokenized(texts, TOKENIZER, folder))
    assert sorted(p.name for p in folder.glob(".*")) == sorted(names[k] for k in ("new", "written", "foreign"))
