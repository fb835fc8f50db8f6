"""burnish embed, and eval --task, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from burnish import cli
from burnish.encoders.config import EncoderConfig
from burnish.export.encoder import save_encoder
from burnish.models.encoder import Encoder

LETTERS = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"])}
CONFIG = EncoderConfig(vocab=len(LETTERS), hidden=12, ffn=16, layers=1, heads=2, table=20, init_std=0.3)


@pytest.fixture
def model(tmp_path: Path) -> str:
    inner = Tokenizer(models.WordLevel(LETTERS, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    inner.save(str(tmp_path / "tokenizer.json"))
    save_encoder(Encoder(CONFIG, torch.Generator().manual_seed(0)), CONFIG, tmp_path / "m", tokenizer=tmp_path)
    return str(tmp_path / "m")


def test_vectors_are_printed_and_written_alike(model, tmp_path, capsys):
    assert cli.code_of(["embed", model, "--text", "ab", "--text", "naïve"]) == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [row["text"] for row in rows] == ["ab", "naïve"]
    assert "mean of the tokens, scaled to length 1, 20 tokens at most (not stated; the usual)" in " ".join(
        said.err.split()
    )
    texts = tmp_path / "texts.txt"
    texts.write_text("ab\n\n naïve \n", encoding="utf-8")
    table = tmp_path / "texts.csv"
    table.write_text("body,other\nab,1\nnaïve,2\n", encoding="utf-8")
    for source, to in ((texts, "v.npy"), (table, "v.jsonl")):
        call = ["embed", model, str(source), "--to", str(tmp_path / to), "--column", "body"]
        assert cli.code_of(call) == 0
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array([row["embedding"] for row in rows], dtype=np.float32))
    assert [json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()] == rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "texts come from one place"),
        (["{texts}", "--text", "a"], "texts come from one place"),
        (["{texts}", "--to", "v.csv"], "v.csv: the ending says the format"),
        (["{missing}"], "missing.txt"),
        (["{rows}"], "rows.jsonl, line 1: no column 'text'"),
    ],
)
def test_what_cannot_be_embedded_is_one_line(words, said, model, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a\n")
    (tmp_path / "rows.jsonl").write_text('{"body": "a"}\n')
    names = {"texts": "texts.txt", "missing": "missing.txt", "rows": "rows.jsonl"}
    given = [word.format(**{name: tmp_path / file for name, file in names.items()}) for word in words]
    assert cli.code_of(["embed", model, *given]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert error.count("\n") == 0


def test_a_task_is_judged_and_printed(model, tmp_path, capsys):
    task = tmp_path / "task.csv"
    task.write_text("text,label\nab,x\nabb,x\nhij,y\nhhij,y\n")
    assert cli.code_of(["eval", model, "--task", str(task)]) == 0
    first, accuracy, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("the class whose mean vector is nearest")
    assert accuracy.startswith("accuracy: ")
    assert cli.code_of(["eval", model, "--task", str(task), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["examples"], found["task"]) == (4, str(task))
    assert found["scores"].keys() == {"accuracy", "macro_f1"}
    assert cli.code_of(["eval", model, "--task", str(task), "--text", str(task)]) == 2
    assert "one of them at a time" in capsys.readouterr().err
