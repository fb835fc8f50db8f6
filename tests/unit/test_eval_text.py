"""The eval verb: figures of a text, what they cover, and sizes that are refused."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.evaluation.text import TextScore, evaluate_text, perplexity, windows
from burnish.models.decoder import Decoder

QUICKSTART = Path(__file__).parents[1] / "fixtures" / "quickstart"
SHAPE = ModelConfig(vocab=19, hidden=16, ffn=24, layers=1, heads=2, max_positions=64)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary():
    model = Decoder(SHAPE)
    with torch.no_grad():
        model.embed.weight.zero_()
    score = perplexity(model, [1, 2, 3, 4, 5], 4, 2, 2, text_bytes=8)
    assert score.perplexity == pytest.approx(SHAPE.vocab)
    assert score.bits_per_byte == pytest.approx(4 * math.log2(SHAPE.vocab) / 8)
    assert (score.tokens, score.bytes) == (4, 8)


def test_scores_add_up_and_stay_numbers():
    score = TextScore(2.0, 1, 1).plus(TextScore(1.0, 2, 3))
    assert score == (3.0, 3, 4)
    assert score.perplexity == pytest.approx(math.e)
    assert TextScore(1e6, 1, 0).perplexity == math.inf
    assert math.isnan(TextScore(1e6, 1, 0).bits_per_byte)


def test_progress_and_mode_of_the_model():
    model, seen = Decoder(SHAPE).train(), []
    perplexity(model, list(range(10)), 4, 3, 2, progress=seen.append)
    assert seen == [6, 9]
    assert model.training


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((9, 1, 1), r"length 1: a window needs a token to score and one before it"),
        ((9, 8, 8), r"stride 8: values 1 to 7 leave every token of a window of 8 one before it"),
        ((9, 8, 0), r"stride 0: values 1 to 7"),
    ],
)
def test_sizes_that_leave_a_token_out_are_refused(sizes, why):
    with pytest.raises(UserError, match=why):
        list(windows(*sizes))


def test_too_short_a_text_and_no_batch_are_refused():
    with pytest.raises(UserError, match="fewer than two tokens"):
        perplexity(Decoder(SHAPE), [1], 8, 4)
    with pytest.raises(UserError, match="batch 0"):
        perplexity(Decoder(SHAPE), [1, 2], 8, 4, 0)


def test_documents_are_texts_of_their_own(tmp_path):
    """Two documents score as each alone; every byte counts, since this tokenizer begins a text with a token."""
    lines = ["It was a truth which Anne could not doubt. \u00e9", "She said nothing."]
    for number, line in enumerate(lines):
        (tmp_path / f"{number}.txt").write_text(line)
    (tmp_path / "both.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    one, other, both = (
        evaluate_text(str(QUICKSTART), str(tmp_path / name), 16, 8, 3) for name in ("0.txt", "1.txt", "both.jsonl")
    )
    assert both["bytes"] == sum(len(line.encode()) for line in lines) == one["bytes"] + other["bytes"]
    assert both["tokens"] == one["tokens"] + other["tokens"]
    nats = sum(part["nats_per_token"] * part["tokens"] for part in (one, other))
    assert both["nats_per_token"] * both["tokens"] == pytest.approx(nats, rel=1e-9)
    assert both["bits_per_byte"] == pytest.approx(nats / math.log(2) / both["bytes"], rel=1e-9)
    assert (both["documents"], both["length"], both["stride"], both["dtype"]) == (2, 16, 8, "float32")


def test_defaults_are_what_the_model_was_trained_on(tmp_path):
    (tmp_path / "a.txt").write_text("It was a truth. " * 9)
    found = evaluate_text(str(QUICKSTART), str(tmp_path / "a.txt"))
    assert (found["length"], found["stride"]) == (256, 128)
    with pytest.raises(UserError, match=r"length 513 exceeds the 512 positions of .*quickstart"):
        evaluate_text(str(QUICKSTART), str(tmp_path / "a.txt"), 513)


def verb(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "burnish", "eval", *words], capture_output=True, text=True, timeout=120
    )


def test_the_verb_prints_figures_and_json(tmp_path):
    (tmp_path / "a.txt").write_text("It was a truth which Anne could not doubt. " * 40)
    done = verb(str(QUICKSTART), "--text", str(tmp_path / "a.txt"), "--length", "64", "--stride", "32", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["perplexity"] == pytest.approx(math.exp(found["nats_per_token"]))
    assert found["bytes"] == (tmp_path / "a.txt").stat().st_size
    assert "left" in done.stderr
    for words, why in (
        ((str(QUICKSTART),), "nothing to judge the model by; name a text with --text"),
        ((str(QUICKSTART), "--text", str(tmp_path / "none.txt")), "none.txt: no such file or folder"),
        (
            (str(QUICKSTART), "--text", str(tmp_path / "a.txt"), "--length", "64", "--stride", "64"),
            "stride 64: values 1 to 63",
        ),
    ):
        done = verb(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
        assert "Traceback" not in done.stderr


def test_ctrl_c_stops_it(tmp_path):
    words = [str(QUICKSTART), "--text", "asset:austen/emma", "--stride", "1"]
    running = subprocess.Popen([sys.executable, "-m", "burnish", "eval", *words], stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    while "left" not in running.stderr.readline():
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in said
