"""How a sentence-transformers folder makes one vector of a text: which positions are pooled, whether it is scaled, how long.

Such a folder is an encoder's folder with `modules.json`, which lists the steps, and a small file of settings for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.encoders.config import EncoderConfig
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint
from burnish.load.folder import MOST_SETTINGS
from burnish.load.json_object import parse_object, read_object
from burnish.load.regular_file import inside, text_of, there
from burnish.tables.encoders import NONE

MODULES, LENGTHS = "modules.json", "sentence_bert_config.json"
POOLING = "1_Pooling"
MEAN, CLS = "mean", "cls"
# Key of a pooling's settings that is true, or value of its `pooling_mode` -> what we call it.
MODES = {"pooling_mode_mean_tokens": MEAN, "pooling_mode_cls_token": CLS, MEAN: MEAN, CLS: CLS}


@dataclass(frozen=True)
class Pooling:
    """`mode`: "mean" over a text's tokens or its first one's state, "cls". `limit`: tokens a text is cut to. `lower`: texts
    are lower-cased first. `stated`: the folder says all this; else it is the usual."""

    mode: str
    normalise: bool
    limit: int
    lower: bool = False
    stated: bool = True

    def __str__(self) -> str:
        scaled = "scaled to length 1" if self.normalise else "not scaled"
        pooled = {MEAN: "mean of the tokens", CLS: "first token"}[self.mode]
        return f"{pooled}, {scaled}, {self.limit} tokens at most" + ("" if self.stated else " (not stated; the usual)")


def pooling_of(checkpoint: Checkpoint, config: EncoderConfig) -> Pooling:
    """As the folder of a checkpoint says; without `modules.json` the mean, scaled, of as many tokens as tokenizer and
    positions allow.

    Raises UserError naming file and key for a step or a kind of pooling that is not one of these.
    """
    folder = Path(checkpoint.where)
    settings = checkpoint.tokenizer.settings if checkpoint.tokenizer else {}
    most = settings.get("model_max_length")
    limit = min(config.max_positions, most) if isinstance(most, int) and most > 0 else config.max_positions
    if not folder.is_dir() or not there(folder, MODULES):
        return Pooling(MEAN, True, limit, stated=False)
    steps = _steps(folder)
    lengths = read_object(inside(folder, LENGTHS), MOST_SETTINGS) if there(folder, LENGTHS) else {}
    asked = lengths.get("max_seq_length")
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 3):
        raise UserError(f"{folder / LENGTHS}: max_seq_length is {asked!r}; it counts tokens, 3 and more work")
    chosen = min(config.max_positions, asked) if asked else limit
    return Pooling(_mode(folder, steps["Pooling"]), "Normalize" in steps, chosen, bool(lengths.get("do_lower_case")))


def stated_pooling(checkpoint: Checkpoint, config: EncoderConfig) -> Pooling | None:
    """`pooling_of` where the folder says something of it and the encoder has no head; else None."""
    folder = Path(checkpoint.where)
    if config.head != NONE or not folder.is_dir() or not there(folder, MODULES):
        return None
    return pooling_of(checkpoint, config)


def sentence_files(pooling: Pooling, hidden: int) -> dict[str, Any]:
    """The files that say so, by their names in a folder: what `pooling_of` reads there is `pooling` again."""
    kinds = [("", "Transformer"), (POOLING, "Pooling"), *([("2_Normalize", "Normalize")] if pooling.normalise else [])]
    return {
        MODULES: [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(kinds)
        ],
        LENGTHS: {"max_seq_length": pooling.limit, "do_lower_case": pooling.lower},
        f"{POOLING}/config.json": {
            "word_embedding_dimension": hidden,
            "pooling_mode_cls_token": pooling.mode == CLS,
            "pooling_mode_mean_tokens": pooling.mode == MEAN,
        },
    }


def _steps(folder: Path) -> dict[str, str]:
    """Kind of each step -> its folder, in a list that is transformer, pooling and maybe scaling."""
    file = inside(folder, MODULES)
    listed = parse_object(b'{"modules": ' + text_of(file, MOST_SETTINGS) + b"}", str(file))["modules"]
    if not isinstance(listed, list) or not all(isinstance(step, dict) for step in listed):
        raise UserError(f"{file}: is not a list of modules, each with type and path")
    steps = {str(step.get("type")).rpartition(".")[2]: str(step.get("path", "")) for step in listed}
    if list(steps) not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        kinds = ", ".join(steps)
        raise UserError(
            f"{file}: the modules are {kinds}; Transformer, Pooling and, after them, Normalize are supported"
        )
    if steps["Transformer"]:
        raise UserError(f"{file}: the Transformer is in {steps['Transformer']!r}; name that folder as the model")
    return steps


def _mode(folder: Path, path: str) -> str:
    name = f"{path}/config.json"
    if Path(path).name != path or not there(folder, name):
        raise UserError(f"{folder / name}: no such file; {MODULES} says that the kind of pooling stands there")
    settings: dict[str, Any] = read_object(inside(folder, name), MOST_SETTINGS)
    flags = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    given = [settings["pooling_mode"]] if isinstance(settings.get("pooling_mode"), str) else flags
    if len(given) != 1 or given[0] not in MODES:
        raise UserError(
            f"{folder / name}: pooling is {', '.join(map(repr, given)) or 'not stated'}; one of pooling_mode_mean_tokens and "
            "pooling_mode_cls_token is supported"
        )
    return MODES[given[0]]
