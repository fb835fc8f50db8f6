"""A small model that learns two conversations, and what transformers makes of the folder it is exported to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config import ModelConfig
from burnish.export.safetensors import save_folder
from burnish.models.decoder import Decoder
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.records import Records, read
from burnish.run import run
from chat_pair import pair, talk

TALKS = (
    talk("Who are you?", "I am very well.", "And she?", "It is a truth."),
    talk("How do you do?", "I said: that <|im_end|> she."),
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a chat template, and the conversations beside it."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = pair("chatml").ours.text
    (folder / "tok").mkdir()
    tokenizer.save(folder / "tok" / "tokenizer.json")
    (folder / "tok" / "tokenizer_config.json").write_text(json.dumps(tokenizer.settings))
    bos, eos = (tokenizer.special_tokens[token] for token in ("<|im_start|>", "<|im_end|>"))
    shape = ModelConfig(vocab=340, hidden=48, ffn=96, layers=2, heads=4, max_positions=128, bos=bos, eos=eos)
    model = Decoder(shape, torch.Generator().manual_seed(0))
    save_folder(model, shape, folder / "model", tokenizer=folder / "tok" / "tokenizer.json")
    lines = [json.dumps({"messages": messages}) for messages in TALKS * 3]
    (folder / "talk.jsonl").write_text("\n".join(lines))
    return folder


def recipe(start: Path) -> Recipe:
    config = ModelConfig.from_file(start / "model" / "config.json")
    changes = {
        "name": "chat",
        "model": config.model_dump(),
        "data.train": [str(start / "talk.jsonl")],
        "data.heldout_fraction": 0.1,
        "data.seq": 48,
        "optim.lr": 1e-2,
        "train.init": str(start / "model"),
        "train.steps": 120,
        "train.eval_every": 60,
        "train.checkpoint_every": 60,
        "machine.threads": 1,
    }
    return replace(load("smollm2-chat"), changes)


def test_what_was_learned_is_said_again_and_ended(start: Path, tmp_path: Path) -> None:
    run(recipe(start), folder=tmp_path / "run", quiet=True)
    records = read(Records, tmp_path / "run" / "records.json")
    assert records.evals[-1].loss < 0.1  # the held-out conversation is one of those learned
    folder = tmp_path / "run" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for messages in TALKS:
        for at in range(1, len(messages), 2):
            asked = tokenizer.apply_chat_template(
                list(messages[:at]), add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            out = model.generate(**asked, max_new_tokens=40, do_sample=False)[0, asked["input_ids"].shape[1] :]
            plain = pair("chatml").ours.text.encode(messages[at]["content"])
            assert out.tolist() == [*plain, tokenizer.eos_token_id]
    ids = torch.tensor([pair("chatml").ours.text.encode("Who are you?")])
    assert float(model(ids, labels=ids).loss.detach()) > 3.0  # what the user says was not learned
