"""Text in, text out: an exported folder read by transformers in its default way says what burnish says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config import ModelConfig
from burnish.data.tokenizer import END_OF_TEXT, Tokenizer
from burnish.errors import UserError
from burnish.export.check import check_export
from burnish.export.safetensors import save_folder
from burnish.models.decoder import Decoder
from burnish.serve.prompts import continued

QUICKSTART = Path(__file__).parents[1] / "fixtures" / "quickstart"
PROMPTS = [
    "",
    "It was a truth which Anne could not",
    f"Emma{END_OF_TEXT}Woodhouse",
    "  She said,\n",
    "na\u00efve \u8a9e",
]
SHAPE = ModelConfig(vocab=300, hidden=32, ffn=48, layers=1, heads=2, kv_heads=1, bos=0, eos=0, max_positions=64)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A tokenizer as a run leaves it: alone, adding nothing."""
    path = tmp_path / "tokenizer.json"
    Tokenizer.train(["some words to learn from, " * 20], 300).save(path)
    return path


def exported(tokenizer: Path, shape: ModelConfig = SHAPE, dtype: str = "float32") -> tuple[Decoder, Path]:
    model = Decoder(shape, torch.Generator().manual_seed(0))
    save_folder(model, shape, tokenizer.parent / "m", tokenizer=tokenizer, dtype=dtype)
    return model, tokenizer.parent / "m"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_same_ids_and_the_same_greedy_text(prompt: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(QUICKSTART)
    theirs = AutoModelForCausalLM.from_pretrained(QUICKSTART, dtype=torch.float32)
    encoded = tokenizer(prompt, return_tensors="pt")
    assert encoded.input_ids[0].tolist() == Tokenizer.load(QUICKSTART).encode_prompt(prompt)
    out = theirs.generate(**encoded, max_new_tokens=16)
    text = tokenizer.decode(out[0], skip_special_tokens=True)
    assert [text] == continued(QUICKSTART, [prompt], {"max_new_tokens": 16})


def test_prompts_are_read_as_in_training(trained: Path) -> None:
    _, folder = exported(trained)
    run, theirs = Tokenizer.load(trained), AutoTokenizer.from_pretrained(folder)
    for prompt in PROMPTS:
        assert theirs(prompt).input_ids == [0, *run.encode(prompt)] == Tokenizer.load(folder).encode_prompt(prompt)
    assert theirs("a", "b").input_ids == [0, *run.encode("a"), *run.encode("b")]


def test_a_model_without_a_beginning_token_gets_none(trained: Path) -> None:
    """What the file itself would add was never trained on."""
    library = Library.from_file(str(trained))
    library.post_processor = processors.TemplateProcessing(
        single=f"$A {END_OF_TEXT}", special_tokens=[(END_OF_TEXT, 0)]
    )
    library.save(str(trained))
    _, folder = exported(trained, SHAPE.model_copy(update={"bos": None}))
    assert AutoTokenizer.from_pretrained(folder)("words").input_ids == Tokenizer.load(trained).encode("words")


def test_files_that_stand_together_are_copied(trained: Path) -> None:
    """A published tokenizer keeps its own ways, and its prompts are read by them."""
    settings = trained.with_name("tokenizer_config.json")
    settings.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT}))
    _, folder = exported(trained)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == trained.with_name(name).read_bytes()
    ours = Tokenizer.load(folder).encode_prompt(f"a{END_OF_TEXT}b")
    assert ours == AutoTokenizer.from_pretrained(folder)(f"a{END_OF_TEXT}b").input_ids
    assert 0 in ours
    settings.write_text("[1]")
    with pytest.raises(UserError, match=r"tokenizer_config\.json: not readable as JSON settings"):
        Tokenizer.load(trained)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_export_check_compares_text(trained: Path, dtype: str) -> None:
    model, folder = exported(trained, dtype=dtype)
    found = check_export(model, folder, trained)
    assert (found["prompts_equal"], found["text_equal"]) == (True, True)
    assert "text_equal" not in check_export(model, folder)


def test_the_export_check_notices_another_tokenizer(trained: Path) -> None:
    model, folder = exported(trained)
    shutil.copyfile(trained, folder / "tokenizer.json")
    found = check_export(model, folder, trained)
    assert (found["prompts_equal"], found["text_equal"]) == (False, False)
    save_folder(model, SHAPE, folder, tokenizer=trained)
    with torch.no_grad():
        model.layers[0].mlp.up.weight += 1.0
        model.embed.weight.copy_(model.embed.weight.flip(0))
    found = check_export(model, folder, trained)
    assert (found["prompts_equal"], found["text_equal"]) == (True, False)


@pytest.mark.parametrize(("new", "said"), [(10, []), (20, ["--max-new-tokens 10 stays within it"])])
def test_text_longer_than_the_trained_rows_is_warned_of_once(trained: Path, new: int, said: list[str]) -> None:
    folder = trained.parent / "m"
    save_folder(Decoder(SHAPE), SHAPE, folder, tokenizer=trained, trained_length=16)
    prompts = ["words ", "\u8a9eab"]  # six tokens with the beginning one at most
    assert max(len(Tokenizer.load(folder).encode_prompt(prompt)) for prompt in prompts) == 6
    warned: list[str] = []
    continued(folder, prompts, {"max_new_tokens": new}, warned.append)
    assert len(warned) == len(said)
    assert all(part in text for part, text in zip(said, warned, strict=True))
    if said:
        assert "than the 16 that the model was trained on" in warned[0]
        prompt = "words to learn from, " * 6
        continued(folder, [prompt], {"max_new_tokens": 1}, warned.append)
        assert warned[1].endswith("(shorten the prompt)")
