"""A recipe that trains, exports, compresses, judges and reports; and one whose budget is too tight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_flow import SMALL, losses

from burnish.cli import code_of
from burnish.compress.subject import subject_of
from burnish.load.folder import open_folder

COMPRESS = [
    "data.heldout=asset:austen/persuasion",
    "compress.technique=awq",
    'compress.settings={"awq": {"group": 32, "method": "rtn"}}',
    "compress.rows=4",
    "compress.length=96",
    "compress.tokens=600",
]
RECIPE = [word for word in SMALL if not word.startswith("data.heldout=")] + COMPRESS


def test_a_run_is_compressed_and_a_missed_budget_keeps_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    run = Path("run")
    assert code_of(["run", *RECIPE, "compress.max_drop=-20", "--out", "run"]) == 3
    assert "at most -20 % may go" in capsys.readouterr().err.splitlines()[-1]
    report = json.loads((run / "report.json").read_text())
    assert report["status"] == "trained"
    assert report["verified"]["accepted"] is False
    assert len(report["verified"]["parts"]) == 4
    assert (run / "model" / "config.json").is_file()
    assert not (run / "compressed").exists()
    before = losses(run)

    assert code_of(["run", *RECIPE, "compress.max_drop=60", "--out", "run"]) == 0
    assert losses(run) == before, "what is trained is not trained again"
    report = json.loads((run / "report.json").read_text())
    assert report["status"] == "done"
    row = next(row for row in report["rows"] if row["key"] == "compressed.bytes")
    files = sum(path.stat().st_size for path in (run / "compressed").glob("*.safetensors"))
    assert row["predicted"] == row["measured"] == files
    assert report["verified"]["judged"]["name"] == "perplexity"
    assert "Compressed weights" in capsys.readouterr().out
    assert "Compression</h2>" in (run / "report.html").read_text()
    lock = yaml.safe_load((run / "recipe.lock.yaml").read_text())
    assert lock["compress"]["max_drop"] == 60
    assert open_folder(run / "compressed").config["quantization_config"]["format"] == "pack-quantized"
    with pytest.raises(ValueError, match="compressed already"):
        subject_of("again", open_folder(run / "compressed"), "cpu")
    assert code_of(["run", *RECIPE, "compress.max_drop=60", "--out", "run"]) == 0
    assert "done already" in capsys.readouterr().err


def test_a_recipe_that_could_not_be_judged_is_refused(capsys):
    assert code_of(["plan", "quickstart", "data.heldout=[]", "compress.technique=awq"]) == 2
    assert "nothing to judge by" in capsys.readouterr().err
    assert code_of(["plan", "quickstart", "compress.technique=awq"]) == 2
    assert "does not divide" in capsys.readouterr().err
    assert code_of(["plan", "quickstart", "compress.technique=int8", 'compress.settings={"awq": {}}']) == 2
    assert "settings of awq" in capsys.readouterr().err
