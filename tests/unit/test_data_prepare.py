"""From a data section to corpora, and the choices it refuses."""

import subprocess
import sys

import pytest

from burnish.data.prepare import prepare
from burnish.errors import UserError
from burnish.recipe import Data


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("It is a truth universally acknowledged. " * 20)
    (tmp_path / "b.txt").write_text("She was happy, very happy indeed. " * 20)
    return tmp_path


def test_a_tokenizer_is_trained_and_both_sides_tokenized(folder):
    data = Data(train=(str(folder / "a.txt"),), heldout=(str(folder / "b.txt"),))
    ready = prepare(data, 280, folder=folder / "c")
    assert ready.tokenizer.decode(ready.train.stream) == (folder / "a.txt").read_text()
    assert ready.tokenizer.decode(ready.heldout.stream) == (folder / "b.txt").read_text()
    assert ready.heldout.total_bytes == len((folder / "b.txt").read_bytes())
    assert sorted(ready.fingerprints) == ["heldout", "tokenizer", "train"]
    assert prepare(data, 280, folder=folder / "c").fingerprints == ready.fingerprints


def test_a_tokenizer_that_is_given_is_used_and_must_fit(folder):
    data = Data(train=(str(folder / "a.txt"),))
    ready = prepare(data, 280, folder=folder / "c")
    assert ready.heldout is None
    ready.tokenizer.save(folder / "tokenizer.json")
    given = data.model_copy(update={"tokenizer": str(folder / "tokenizer.json")})
    assert prepare(given, 300, folder=folder / "c").fingerprints == ready.fingerprints
    with pytest.raises(UserError, match=r"tokenizer\.json has 280 tokens, model\.vocab is 279"):
        prepare(given, 279, folder=folder / "c")


def test_a_fraction_is_held_out_only_when_no_file_is(folder):
    train = (str(folder / "a.txt"),)
    ready = prepare(Data(train=train, heldout_fraction=0.2), 280, folder=folder / "c")
    text = (folder / "a.txt").read_text()
    tail = ready.tokenizer.decode(ready.heldout.document(0))
    assert text == ready.tokenizer.decode(ready.train.document(0)) + tail
    assert 0.1 < len(tail) / len(text) < 0.3
    named = Data(train=train, heldout=(str(folder / "b.txt"),), heldout_fraction=0.2)
    assert prepare(named, 280, folder=folder / "c").heldout.total_bytes == (folder / "b.txt").stat().st_size


def test_training_text_cannot_be_held_out(folder):
    data = Data(train=(str(folder),), heldout=(str(folder / "b.txt"),))
    with pytest.raises(UserError, match=r"b\.txt: is in data\.train and in data\.heldout"):
        prepare(data, 280, folder=folder / "c")


def test_the_data_side_loads_no_torch():
    program = (
        "import sys, burnish.data.prepare, burnish.data.sampler, burnish.data.kneser_ney; "
        "print(sorted({'torch', 'tokenizers', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
