"""Texts: what each kind of file gives, and one line naming the file for each way it can be wrong."""

import gzip
import json
import os
import sys

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.text import Texts
from burnish.errors import MissingExtra, UserError


def read(*paths, field="text"):
    return list(Texts.open([str(p) for p in paths], field).documents())


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_each_kind_of_file(tmp_path):
    plain = put(tmp_path, "a.txt", "Ünïcode\r\nkept as it is\n")
    packed = put(tmp_path, "b.txt.gz", gzip.compress(b"from gzip"))
    lines = put(tmp_path, "c.jsonl", '{"text": "one"}\n\n{"text": "", "n": 2}\n{"text": "\\u00fc"}')
    rows = parquet(tmp_path / "d.parquet", text=["p", "q", ""], n=[1, 2, 3])
    assert read(plain) == ["Ünïcode\r\nkept as it is\n"]
    assert read(packed) == ["from gzip"]
    assert read(lines) == ["one", "", "ü"]
    assert read(rows) == ["p", "q", ""]
    texts = Texts.open([plain, packed, lines, rows])
    assert texts.count() == len(list(texts.documents())) == 8


def test_another_field_and_a_byte_order_mark(tmp_path):
    lines = put(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"body": "x", "text": "no"}\n')
    assert read(lines, field="body") == ["x"]
    assert read(parquet(tmp_path / "b.parquet", body=["y"]), field="body") == ["y"]
    assert read(put(tmp_path, "c.txt", b"\xef\xbb\xbfz")) == ["z"]


def test_a_folder_is_read_in_sorted_order_and_skips_what_is_not_text(tmp_path):
    for name, content in [("b/z.txt", "3"), ("b/a.TXT", "2"), ("a.txt", "1"), (".hidden.txt", "x"), ("c.csv", "x")]:
        put(tmp_path, name, content)
    assert read(tmp_path) == ["1", "2", "3"]


def test_assets_are_the_six_novels():
    assert [len(text.encode()) for text in read("asset:austen")] == [883027, 883279, 433410, 466853, 684767, 673687]
    assert read("asset:austen/persuasion")[0].startswith("Persuasion\n\n\nby\n\nJane Austen")


BAD = {
    "missing.txt": (None, "no such file or folder"),
    "empty.txt": (b"", "the file is empty"),
    "blank.txt": (b" \n\n ", "only white space"),
    "latin.txt": ("caf\u00e9".encode("latin-1"), "not UTF-8 text (byte 0xe9 at offset 3)"),
    "binary.txt": (b"abc\0def", "holds a NUL byte at offset 3"),
    "table.csv": (b"a,b", "usable: .txt, .txt.gz, .jsonl, .parquet"),
    "short.txt.gz": (gzip.compress(b"long enough to be cut" * 9)[:-9], "not a whole gzip file"),
    "fake.txt.gz": (b"plain text", "not a whole gzip file"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b"', "line 2: not valid JSON"),
    "list.jsonl": (b'{"text": "a"}\n\n["b"]\n', "line 3: expected a JSON object with key 'text', found an array"),
    "string.jsonl": (b'"text"\n', "line 1: expected a JSON object with key 'text', found a string"),
    "field.jsonl": (b'{"texts": "a", "n": 1}\n', "line 1: no key 'text' (data.text_field); did you mean 'texts'?"),
    "null.jsonl": (b'{"text": null}\n', "line 1: 'text' must be a string, found null"),
    "number.jsonl": (b'{"text": "a"}\n{"text": 3}\n', "line 2: 'text' must be a string, found a number"),
    "bytes.jsonl": (b'{"text": "a"}\n{"text": "\xff"}\n', "line 2: not UTF-8 text (byte 0xff"),
    "half.jsonl": (b'{"text": "\\ud800"}\n', "line 1: holds half a surrogate pair"),
    "deep.jsonl": (b"[" * 100_000, "line 1: not"),
    "digits.jsonl": (b'{"text": ' + b"9" * 5000 + b"}", "line 1: not usable JSON"),
    "blank.jsonl": (b"\n \n", "holds no document"),
    "fake.parquet": (b"PAR1 not really", "not a readable parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line_that_names_it(tmp_path, name):
    content, message = BAD[name]
    path = tmp_path / name if content is None else put(tmp_path, name, content)
    with pytest.raises(UserError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert message in text
    assert "\n" not in text


def test_bad_parquet_columns_folders_and_assets(tmp_path):
    good = parquet(tmp_path / "a.parquet", text=["x", None], texts=[1, 2])
    with pytest.raises(UserError, match=r"a\.parquet: no column 'txt' \(data\.text_field\); did you mean 'text'\?"):
        read(good, field="txt")
    with pytest.raises(UserError, match=r"a\.parquet: column 'texts' must hold strings, found int64"):
        read(good, field="texts")
    with pytest.raises(UserError, match=r"a\.parquet, row 2: 'text' must be a string, found null"):
        read(good)
    put(tmp_path, "folder/x.csv", "a,b")
    with pytest.raises(UserError, match=r"folder: no usable file in this folder"):
        read(tmp_path / "folder")
    with pytest.raises(UserError, match=r"asset:austen/ema: no such asset; did you mean 'austen/emma'\?"):
        read("asset:austen/ema")
    with pytest.raises(UserError, match="no text was given"):
        read()


def test_parquet_without_its_package_names_the_extra(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", text=["x"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'burnish\[train\]'"):
        read(path)


def test_the_fingerprint_is_of_content_order_and_field_and_not_of_names(tmp_path):
    a, b = put(tmp_path, "a.jsonl", '{"text": "1", "t": "2"}'), put(tmp_path, "b.jsonl", '{"text": "3"}')
    moved = put(tmp_path, "c.jsonl", a.read_bytes())
    as_text = put(tmp_path, "c.txt", a.read_bytes())
    reference = Texts.open([a, b]).fingerprint
    assert Texts.open([moved, b]).fingerprint == reference
    others = [Texts.open([b, a]), Texts.open([a]), Texts.open([a, b], "t"), Texts.open([as_text, b])]
    put(tmp_path, "a.jsonl", '{"text": "1", "t": "3"}')
    others.append(Texts.open([a, b]))
    assert len({reference, *(texts.fingerprint for texts in others)}) == 6


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "n"]), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30) | json_values.map(lambda v: json.dumps(v).encode()), min_size=1, max_size=4))
def test_any_bytes_give_texts_or_one_line(tmp_path_factory, lines):
    path = put(tmp_path_factory.mktemp("any"), "a.jsonl", b"\n".join(lines))
    message = ""
    try:
        for text in read(path):
            text.encode()
    except UserError as error:
        message = str(error)
    assert not message or (message.startswith(str(path)) and len(message.splitlines()) == 1)


def test_a_file_is_given_once(tmp_path):
    (tmp_path / "a.txt").write_text("some words")
    (tmp_path / "also.txt").symlink_to("a.txt")
    a = tmp_path / "a.txt"
    for sources in ([a, a], [tmp_path / ".." / tmp_path.name / "a.txt", a]):
        with pytest.raises(UserError, match=r"a\.txt: is given twice"):
            Texts.open(sources)
    with pytest.raises(UserError, match=r"also\.txt: is given twice \(as .*a\.txt\)"):
        Texts.open([tmp_path])
    with pytest.raises(UserError, match=r"emma.*: is given twice"):
        Texts.open(["asset:austen", "asset:austen/emma"])


def test_what_is_no_regular_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for source in (tmp_path, tmp_path / "pipe.txt"):
        with pytest.raises(UserError, match=r"pipe\.txt: not a regular file"):
            Texts.open([source])
    (tmp_path / "pipe.txt").unlink()
    (tmp_path / "nowhere.jsonl").symlink_to("gone.jsonl")
    with pytest.raises(UserError, match=r"nowhere\.jsonl: not a regular file .*broken link"):
        Texts.open([tmp_path])


def test_an_empty_file_in_a_folder_says_what_to_do(tmp_path):
    (tmp_path / "a.txt").write_text("some words")
    (tmp_path / "b.txt").touch()
    with pytest.raises(UserError, match=r"b\.txt: the file is empty; remove it, or name the files"):
        Texts.open([tmp_path])
