"""The tokenizer's files of a model folder: checked against the model, then written so that prompts are read as in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.load.checkpoint import TokenizerFiles


def check_tokenizer(tokenizer_path: str | Path, config: ModelConfig) -> int:
    """Refuse a tokenizer that can emit ids the model has no row for. Returns its size, the largest id plus one.

    A model may have more rows than the tokenizer has tokens (a padded vocabulary). Raises UserError naming the file.
    """
    path = _file(tokenizer_path)
    tokens = _tokens(path)
    size = max(tokens, default=-1) + 1
    if size > config.vocab:
        raise UserError(f"{path}: has {size} tokens, the model {config.vocab}; vocab must be {size} or more")
    for name in ("bos", "eos", "pad"):
        token = getattr(config, name)
        if token is not None and token not in tokens:
            raise UserError(f"{path}: has no token {token}, the model's {name}; its ids end at {size - 1}")
    return size


def write_files(files: TokenizerFiles, folder: Path) -> None:
    """Write the tokenizer's files as they were read, the chat template in a file of its own."""
    (folder / "tokenizer.json").write_text(files.tokenizer, encoding="utf-8")
    settings = {key: value for key, value in files.settings.items() if key != "chat_template"}
    if settings:
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    if files.template is not None:
        (folder / "chat_template.jinja").write_text(files.template, encoding="utf-8")


def write_tokenizer(tokenizer: str | Path | TokenizerFiles, config: ModelConfig, folder: Path) -> None:
    """Write `tokenizer.json` into `folder` with its `tokenizer_config.json`.

    The content of files is written as it is. Where both files stand together they are copied. A `tokenizer.json` alone is
    one that a model was trained with here, on plain text after a beginning token: it is made to add that token, and the
    settings say that no text is special. Raises UserError as `check_tokenizer` does.
    """
    if isinstance(tokenizer, TokenizerFiles):
        write_files(tokenizer, folder)
        return
    check_tokenizer(tokenizer, config)
    path = _file(tokenizer)
    beside = path.with_name("tokenizer_config.json")
    if beside.is_file():
        shutil.copyfile(path, folder / "tokenizer.json")
        shutil.copyfile(beside, folder / "tokenizer_config.json")
        return
    tokens = _tokens(path)
    own = json.loads(path.read_text(encoding="utf-8"))
    own["post_processor"] = None if config.bos is None else _beginning(config.bos, tokens[config.bos])
    (folder / "tokenizer.json").write_text(
        json.dumps(own, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    for name in ("bos", "eos", "pad"):
        token = getattr(config, name)
        if token is not None:
            content[f"{name}_token"] = tokens[token]
    (folder / "tokenizer_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _beginning(number: int, token: str) -> dict[str, Any]:
    """A post-processor of the tokenizers library that sets one token before a text, and before a pair of them."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    return {
        "type": "TemplateProcessing",
        "single": [first, texts[0]],
        "pair": [first, *texts],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def _file(tokenizer_path: str | Path) -> Path:
    path = Path(tokenizer_path)
    return path / "tokenizer.json" if path.is_dir() else path


def _tokens(path: Path) -> dict[int, str]:
    """Every id with its text, added tokens included."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        vocab = content["model"]["vocab"]
        # byte-pair and word-piece models map text to id; unigram models list [text, score] in order of id
        tokens = {i: str(row[0]) for i, row in enumerate(vocab)} if isinstance(vocab, list) else {}
        tokens = tokens or {int(i): text for text, i in vocab.items()}
        return tokens | {int(added["id"]): str(added["content"]) for added in content.get("added_tokens", [])}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a tokenizer.json is needed") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise UserError(f"{path}: is not a tokenizer.json (JSON with model.vocab)") from None
