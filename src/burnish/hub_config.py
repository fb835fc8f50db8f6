"""Hub configuration: the `config.json` of a model on the Hugging Face hub, from the cache here or over the network."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

from burnish.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
SECONDS = 6.0  # longest wait for the network


def fetch(name: str, instead: str) -> Path:
    """The file of a model. Raises UserError saying `instead` where it cannot be had; never waits long."""
    why = "the package huggingface_hub is not installed"
    if importlib.util.find_spec("huggingface_hub") is not None:
        path, why = _within(name)
        if path is not None:
            return path
    raise UserError(f"model {name!r}: {why}; give the path of its config.json, {instead}")


def _within(name: str) -> tuple[Path | None, str]:
    """The file, or why there is none, within `SECONDS`: the client retries longer than a person waits."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from huggingface_hub.utils import logging

    cached = try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        return Path(cached), ""
    if not _reachable(ENDPOINT):
        return None, "the hub cannot be reached"
    logging.set_verbosity_error()
    found: list[str] = []
    failed: list[str] = []

    def download() -> None:
        try:
            found.append(hf_hub_download(name, "config.json", etag_timeout=SECONDS / 2))
        except GatedRepoError:
            failed.append("the hub asks for permission to read it")
        except RepositoryNotFoundError:
            failed.append("the hub has no such model, or keeps it private")
        except Exception:  # whatever the client or the network says, the answer to a person is the same
            failed.append("the hub cannot be reached")

    thread = threading.Thread(target=download, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if found:
        return Path(found[0]), ""
    return None, failed[0] if failed else "the hub does not answer"


def _reachable(endpoint: str) -> bool:
    """Whether the hub takes a connection; taken for granted where the network is used through a proxy."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlsplit(endpoint)
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), SECONDS / 3):
            return True
    except OSError:
        return False
