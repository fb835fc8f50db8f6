"""Looking into a checkpoint's tokenizer: its kind, how many tokens, which are special, whether it has a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint
from burnish.load.json_object import parse_object

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def tokenizer_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What `tokenizer.json` and its settings say; None where there is no tokenizer, `refused` why one cannot be read."""
    files = checkpoint.tokenizer
    if files is None:
        return None
    try:
        content = parse_object(files.tokenizer.encode(), "tokenizer.json")
        ids = _ids(content)
    except UserError as error:
        return {"refused": str(error)}
    tokens = {name: token for name in _SPECIAL if (token := _text(files.settings.get(name))) is not None}
    return {
        "kind": _kind(content),
        "tokens": max(ids.values(), default=-1) + 1,
        "special": {name: {"text": token, "id": ids.get(token)} for name, token in tokens.items()},
        "added": len(content.get("added_tokens") or ()),
        "chat_template": files.template is not None,
        "refused": None,
    }


def _ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Text -> id. Raises UserError when the file has no vocabulary."""
    try:
        vocab = content["model"]["vocab"]
        listed = vocab.items() if isinstance(vocab, dict) else ((row[0], i) for i, row in enumerate(vocab))
        ids = {str(token): int(number) for token, number in listed}
        return ids | {str(row["content"]): int(row["id"]) for row in content.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError, IndexError):
        raise UserError("tokenizer.json: has no vocabulary of tokens with their numbers") from None


def _kind(content: Mapping[str, Any]) -> str:
    """The algorithm, and whether it works on bytes."""
    model = content["model"]
    kind = str(model.get("type") or "BPE")
    steps = str((content.get("pre_tokenizer"), content.get("decoder")))
    if kind == "BPE" and "ByteLevel" in steps:
        return "byte-level BPE"
    return f"{kind} with byte fallback" if model.get("byte_fallback") else kind


def _text(token: Any) -> str | None:
    """A special token as its settings spell it: text, or an object that has it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
