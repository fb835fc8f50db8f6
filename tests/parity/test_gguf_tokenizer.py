"""Tokenizers in GGUF files: the same ids as the programs they come from, there and back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import gguf_models
from burnish.export.gguf import save_gguf
from burnish.gguf_files.header import Header
from burnish.gguf_files.vocabulary import write_vocabulary
from burnish.load import gguf_tokenizer
from burnish.load.checkpoint import TokenizerFiles
from burnish.load.gguf import open_gguf
from burnish.load.gguf_tokenizer import pre_tokenizer, read_tokenizer
from burnish.tables.gguf_tokenizers import CUTS, Cut
from gguf_texts import ODD, lines

KEY = "tokenizer.ggml."
cuts = pytest.mark.parametrize("cut", CUTS, ids=[cut.names[0] for cut in CUTS])


def ids_of(files: TokenizerFiles, texts: tuple[str, ...], plain: bool = False) -> list[list[int]]:
    inner = Tokenizer.from_str(files.tokenizer)
    inner.encode_special_tokens = plain
    return [inner.encode(text, add_special_tokens=False).ids for text in texts]


def there_and_back(files: TokenizerFiles, vocab: int, config: dict | None = None) -> TokenizerFiles:
    fields = write_vocabulary(files, {"vocab_size": vocab} | (config or {}), "m")
    header = Header(Path("m.gguf"), {key: value for key, _, value in fields}, {})
    back = read_tokenizer(header, vocab, None)
    assert back is not None
    return back


def trained(cut: Cut, vocab: int = 900) -> TokenizerFiles:
    """A tokenizer that cuts text so, trained on prose with numbers and other scripts, so that every rule shows."""
    inner = Tokenizer(models.BPE(ignore_merges=cut.whole))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=8,
    )
    # without any cut, so that the vocabulary has tokens that only some ways of cutting can reach
    inner.train_from_iterator([*lines(200), *ODD * 20], trainer)
    content = json.loads(inner.to_str()) | {"pre_tokenizer": pre_tokenizer(cut)}
    content["normalizer"] = {"type": "NFC"} if cut.composed else None
    settings = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    return TokenizerFiles(json.dumps(content), settings, "{{ messages }}")


def smollm2_differs(file: Path) -> list[str]:
    """Texts of which our tokenizer and transformers' make different ids."""
    ours = open_gguf(file).tokenizer
    assert ours is not None
    theirs = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    texts = (*lines(), *ODD)
    assert ours.template == theirs.chat_template
    assert [ours.settings[f"{name}_token"] for name in ("bos", "eos", "pad", "unk")] == [
        *(theirs.bos_token, theirs.eos_token, theirs.pad_token, theirs.unk_token)
    ]
    return [t for t, ids in zip(texts, ids_of(ours, texts), strict=True) if ids != theirs(t)["input_ids"]]


def test_smollm2_makes_transformers_ids(smollm2):
    """But for numerals that are no digits, which transformers' reader of GGUF does not take one by one."""
    assert smollm2_differs(smollm2) == ["\u00bd \u2167 \u00b2\u00b3 \u0661\u0662\u0663 \u2460"]


@pytest.mark.sabotage
def test_another_way_of_cutting_is_noticed(smollm2, monkeypatch):
    monkeypatch.setattr(gguf_tokenizer, "_cut", lambda header: CUTS[-1])
    assert len(smollm2_differs(smollm2)) > 5


def llama_cpp_ids(file: Path, texts: tuple[str, ...]) -> list[list[int]]:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (pip install llama-cpp-python)")
    engine = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    return [engine.tokenize(text.encode(), add_bos=False, special=True) for text in texts]


def test_smollm2_makes_llama_cpp_ids(smollm2):
    files = open_gguf(smollm2).tokenizer
    texts = tuple(text for text in (*lines(), *ODD) if text)
    assert ids_of(files, texts) == llama_cpp_ids(smollm2, texts)


@cuts
def test_each_way_of_cutting_survives(cut):
    """The way is recognised by its patterns; a model with more rows than tokens changes nothing."""
    files = trained(cut)
    back = there_and_back(files, 930)
    assert ids_of(back, (*lines(50), *ODD)) == ids_of(files, (*lines(50), *ODD))
    assert back.settings["bos_token"] == "<|im_start|>"
    assert back.settings["eos_token"] == "<|im_end|>"
    assert back.template == files.template
    assert Tokenizer.from_str(back.tokenizer).get_vocab_size() == Tokenizer.from_str(files.tokenizer).get_vocab_size()
    others = [there_and_back(trained(other), 930) for other in CUTS if other is not cut]
    assert all(ids_of(other, ODD) != ids_of(back, ODD) for other in others)


@cuts
def test_llama_cpp_cuts_as_we_do(cut, tmp_path):
    _, checkpoint = gguf_models.model("llama tied", tmp_path, vocab_size=930)
    files = trained(cut)
    save_gguf(replace(checkpoint, tokenizer=files), tmp_path / "m.gguf", "F32")
    # llama.cpp composes no characters, and takes any token that spells </s> for a special one
    odd = [text for text in ODD if text and "</s>" not in text and not (cut.composed and "\u212b" in text)]
    texts = (*lines(200), *odd)
    found = llama_cpp_ids(tmp_path / "m.gguf", texts)
    wanted = ids_of(files, texts)
    assert [t for t, a, b in zip(texts, found, wanted, strict=True) if a != b] == []


def test_published_patterns():
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    named = {cut.names[0]: cut for cut in CUTS}
    assert named["qwen2"].patterns == (PRETOKENIZE_REGEX,)
    assert named["llama-bpe"].patterns == (TikTokenConverter().pattern,)


def mistral(file: Path, **more: object) -> dict[str, object]:
    """Metadata as llama.cpp's converter makes them from the pieces of a SentencePiece model."""
    from transformers.utils import sentencepiece_model_pb2_new as messages

    model = messages.ModelProto()
    model.ParseFromString(file.read_bytes())
    return {
        KEY + "model": "llama",
        KEY + "pre": "default",
        KEY + "tokens": [piece.piece for piece in model.pieces],
        KEY + "scores": [piece.score for piece in model.pieces],
        KEY + "token_type": [piece.type for piece in model.pieces],
        KEY + "bos_token_id": 1,
        KEY + "eos_token_id": 2,
        KEY + "unknown_token_id": 0,
        **{KEY + key: value for key, value in more.items()},
    }


def check_mistral(files: TokenizerFiles) -> None:
    wanted = json.loads((Path(__file__).parents[1] / "fixtures" / "mistral_ids.json").read_text())
    found = ids_of(files, lines(), plain=True)
    assert sum(map(len, found)) == wanted["lines_tokens"]
    assert hashlib.sha256(json.dumps(found, separators=(",", ":")).encode()).hexdigest() == wanted["lines_sha256"]
    assert ids_of(files, ODD, plain=True) == wanted["odd"]


def test_mistral_makes_sentencepiece_ids(mistral_file):
    """Against ids that the sentencepiece library made of the same texts, where no text is a special token."""
    files = read_tokenizer(Header(Path("m.gguf"), mistral(mistral_file), {}), 32000, 8192)
    check_mistral(files)
    inner = Tokenizer.from_str(files.tokenizer)
    assert inner.encode("Hello").ids == [1, 22557]  # bos before a text, as the kind does where the file does not say
    assert inner.decode(inner.encode("Hello  world\n\u8a9e\U0001f308").ids) == "Hello  world\n\u8a9e\U0001f308"
    assert files.settings["model_max_length"] == 8192
    # and written: scores from the order of merges, no longer those of the file, choose the same pieces
    check_mistral(there_and_back(files, 32000, {"bos_token_id": 1, "eos_token_id": 2}))


@pytest.mark.sabotage
def test_merges_in_another_order_are_noticed(mistral_file, monkeypatch):
    pairs = gguf_tokenizer.pairs
    monkeypatch.setattr(gguf_tokenizer, "pairs", lambda scores: pairs(scores)[::-1])
    with pytest.raises(AssertionError):
        check_mistral(read_tokenizer(Header(Path("m.gguf"), mistral(mistral_file), {}), 32000, 8192))


def test_llama_cpp_reads_our_pieces(mistral_file, tmp_path):
    files = read_tokenizer(Header(Path("m.gguf"), mistral(mistral_file, add_bos_token=False), {}), 32000, 8192)
    _, checkpoint = gguf_models.model("llama tied", tmp_path, vocab_size=32000)
    save_gguf(replace(checkpoint, tokenizer=files), tmp_path / "m.gguf", "Q8_0")
    texts = tuple(text for text in (*lines(), *ODD) if text)
    assert llama_cpp_ids(tmp_path / "m.gguf", texts) == ids_of(files, texts)


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_what_is_set_around_a_text_survives(bos, eos):
    around = {KEY + "add_bos_token": bos, KEY + "add_eos_token": eos}
    fields = write_vocabulary(trained(CUTS[0]), {"vocab_size": 900}, "m")
    header = Header(Path("m.gguf"), {key: value for key, _, value in fields} | around, {})
    files = read_tokenizer(header, 900, None)
    again = there_and_back(files, 900)
    for one in (files, again):
        ids = Tokenizer.from_str(one.tokenizer).encode("it was").ids
        assert (ids[0] == 1, ids[-1] == 2) == (bos, eos)
        assert one.settings["add_bos_token"] == bos
    both = Tokenizer.from_str(files.tokenizer).encode("it", "was").ids
    assert (both.count(1), both.count(2)) == (2 * bos, 2 * eos)


def test_added_tokens_keep_their_kind():
    files = gguf_models.byte_level()
    back = there_and_back(files, gguf_models.VOCAB)
    kept = {t["content"]: t["special"] for t in json.loads(back.tokenizer)["added_tokens"]}
    assert kept == {"<|endoftext|>": True, "<|user|>": True, "<think>": False}
    fields = {k: v for k, _, v in write_vocabulary(files, {"vocab_size": gguf_models.VOCAB}, "m")}
    kinds = np.array(fields[KEY + "token_type"])
    size = Tokenizer.from_str(files.tokenizer).get_vocab_size()
    assert list(np.flatnonzero(kinds == 5)) == list(range(size, gguf_models.VOCAB))
    assert fields[KEY + "tokens"][-1] == f"[PAD{gguf_models.VOCAB - 1}]"
