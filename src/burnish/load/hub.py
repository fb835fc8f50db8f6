"""Models of the Hugging Face hub: the files a checkpoint is made of, through the hub's client and its cache; never code."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from burnish.errors import MissingExtra, UserError
from burnish.hub_config import NAME, SECONDS
from burnish.load.folder import open_folder

_SOURCE = re.compile(rf"(?P<name>{NAME.pattern})(?:@(?P<revision>[\w./-]{{1,250}}))?")
_TEXTS = re.compile(
    r"[^/]+\.(?:json|jinja)|additional_chat_templates/[^/]+\.jinja|(?:vocab|merges)\.txt|tokenizer\.model"
    r"|1_Pooling/config\.json"  # how sentence-transformers makes one vector of a text
)
# Kinds of weight files in the order of preference; a pickle only where there is nothing else.
_WEIGHTS = (re.compile(r"model(?:-\d+-of-\d+)?\.safetensors"), re.compile(r"pytorch_model(?:-\d+-of-\d+)?\.bin"))
_INSTEAD = "give the path of a model folder or of a .gguf file"


def parse(source: str) -> tuple[str, str | None] | None:
    """(ORG/NAME, revision or None) of a source that is spelled ORG/NAME or ORG/NAME@REVISION, else None."""
    found = _SOURCE.fullmatch(source)
    return (found["name"], found["revision"]) if found else None


def wanted(files: Iterable[str]) -> list[str]:
    """Of a repository's files those that are downloaded: settings, tokenizer, templates and one kind of weights.

    Files in folders are other people's variants (and a copy of the weights each), so only those at the top count.
    """
    names = sorted(files)
    weights = next((found for kind in _WEIGHTS if (found := [name for name in names if kind.fullmatch(name)])), [])
    return [name for name in names if _TEXTS.fullmatch(name)] + weights if weights else []


def snapshot(name: str, revision: str | None = None, *, renew: bool = False) -> Path:
    """The folder of a model in the hub's cache; downloaded unless it is there whole, or to `renew` it.

    Raises UserError, one sentence, where it cannot be had: no client, no network, no such model, no permission.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtra(f"model {name!r}", "models", "huggingface_hub")
    if not renew and (cached := _cached(name, revision)) is not None:
        return cached
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        client = HfApi()
        about = client.model_info(name, revision=revision, timeout=SECONDS)
        files = [file.rfilename for file in about.siblings or ()]
        return Path(client.snapshot_download(name, revision=revision, allow_patterns=_chosen(name, files)))
    except UserError:
        raise
    except Exception as error:  # the client raises its own kinds and those of what it stands on
        raise UserError(f"model {name!r}: {_why(error, revision)}; {_INSTEAD}") from None


def _chosen(name: str, files: list[str]) -> list[str]:
    chosen = wanted(files)
    if not chosen:
        others = sorted(file for file in files if file.endswith(".gguf"))[:3]
        known = f"; download one of its GGUF files ({', '.join(others)}, ...) and give its path" if others else ""
        raise UserError(f"model {name!r}: the hub has no safetensors file and no pytorch_model.bin of it{known}")
    return [re.sub(r"([*?[])", r"[\1]", file) for file in chosen]


def _cached(name: str, revision: str | None) -> Path | None:
    """The folder in the cache if all of the model is there; the cache may hold a part, such as config.json alone."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=["config.json"])
        open_folder(found)
    except Exception:  # not there, or a part of it: both mean that it is to be downloaded
        return None
    return Path(found)


def _why(error: Exception, revision: str | None) -> str:
    """One clause for whatever the client raised."""
    from huggingface_hub import errors

    known: tuple[tuple[Any, str], ...] = (
        (errors.GatedRepoError, "the hub asks for permission to read it: accept its terms, then run `hf auth login`"),
        (errors.RevisionNotFoundError, f"the hub has no revision {revision!r} of it"),
        (errors.RepositoryNotFoundError, "the hub has no such model, or keeps it private"),
        (errors.OfflineModeIsEnabled, "it is not in the hub's cache here, and HF_HUB_OFFLINE forbids to ask the hub"),
        (errors.HfHubHTTPError, "the hub refused or failed"),
    )
    for kind, clause in known:
        if isinstance(error, kind):
            return clause
    if getattr(error, "errno", None) is not None:
        return f"it cannot be written into the hub's cache ({getattr(error, 'strerror', None) or error})"
    return "the hub cannot be reached"
