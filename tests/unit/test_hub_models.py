"""Models of the hub: which files are taken, the cache as it is laid out, and one sentence where a model cannot be had."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from small_folder import made_folder, sharded

from burnish.errors import UserError
from burnish.load.folder import open_folder
from burnish.load.hub import parse, snapshot, wanted
from burnish.load.source import open_model

COMMIT = "5" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and a hub that nobody answers for."""
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


def filled(cache: Path, folder: Path) -> Path:
    """The folder's files in the layout of the cache, as the client leaves them."""
    home = cache / "models--org--name"
    for part in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (home / part).mkdir(parents=True)
    (home / "refs/main").write_text(COMMIT)
    for file in folder.iterdir():
        blob = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, home / "blobs" / blob)
        (home / "snapshots" / COMMIT / file.name).symlink_to(f"../../blobs/{blob}")
    return home / "snapshots" / COMMIT


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for. `files` are of org/name; other names answer as the hub does for them."""

    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        if path.startswith("/api/models/org/name/tree/"):
            rows = [
                {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                for n, c in self.files.items()
            ]
            self.answer(200, json.dumps(rows).encode())
        elif path in (
            "/api/models/org/name",
            "/api/models/org/name/revision/main",
            f"/api/models/org/name/revision/{COMMIT}",
        ):
            rows = [{"rfilename": name} for name in self.files]
            self.answer(200, json.dumps({"id": "org/name", "sha": COMMIT, "siblings": rows}).encode())
        elif path.startswith("/api/models/org/name/revision/"):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/models/org/gated"):
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path.startswith("/api/models/org/broken"):
            self.answer(500, b"{}")
        elif path.startswith(f"/org/name/resolve/{COMMIT}/"):
            content = self.files[path.removeprefix(f"/org/name/resolve/{COMMIT}/")]
            self.answer(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT})
        else:
            self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, code: int, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(content))} | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def hub(cache, tmp_path, monkeypatch):
    """A hub on this machine with one model, beside whose files lie such as are never to be taken."""
    folder = made_folder(tmp_path / "published")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    files |= dict.fromkeys(("modeling_own.py", "pytorch_model.bin", "onnx/model.onnx", "fp16/model.safetensors"), b"no")
    handler = type("OneHub", (Hub,), {"files": files, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        here, of_file = f"http://127.0.0.1:{server.server_port}", "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", here)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", here + of_file)
        yield handler
        server.shutdown()
        thread.join()


def refused(name: str, *parts: str, revision: str | None = None) -> None:
    with pytest.raises(UserError) as caught:
        snapshot(name, revision)
    assert "\n" not in str(caught.value)
    for part in (f"model {name!r}", *parts):
        assert part in str(caught.value)


def test_a_model_is_downloaded_and_then_here(hub):
    place = snapshot("org/name")
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert {file.name for file in place.rglob("*")} == names
    assert open_folder(place).tensors["a.weight"].read().shape == (3, 4)
    assert place.name == COMMIT
    before = len(hub.asked)
    assert open_model("org/name").where == str(place)
    assert snapshot("org/name", "main") == place
    assert len(hub.asked) == before  # from the cache, without asking
    assert snapshot("org/name", renew=True) == place
    assert len(hub.asked) > before


def test_the_hub_says_no(hub):
    refused("org/none", "no such model, or keeps it private")
    refused("org/gated", "asks for permission", "hf auth login")
    refused("org/name", "no revision 'v9'", revision="v9")
    refused("org/broken", "refused or failed")
    for name in [name for name in hub.files if name.endswith((".safetensors", ".bin")) and "/" not in name]:
        del hub.files[name]
    hub.files["small.Q4_0.gguf"] = b""
    refused("org/name", "no safetensors file", "small.Q4_0.gguf")


def test_a_filled_cache_needs_no_hub(cache, tmp_path):
    place = filled(cache, made_folder(tmp_path / "m"))
    assert snapshot("org/name") == place
    assert snapshot("org/name", COMMIT) == place
    assert open_model(f"org/name@{COMMIT}").format == "safetensors"
    refused("org/name", "cannot be reached", "path of a model folder", revision="other")
    refused("org/absent", "cannot be reached")


def test_a_cache_that_holds_a_part_is_not_taken_for_the_model(cache, tmp_path):
    folder = made_folder(tmp_path / "m")
    sharded(folder)
    place = filled(cache, folder)
    assert snapshot("org/name") == place
    (place / "model-00002-of-00003.safetensors").unlink()
    refused("org/name", "cannot be reached")


def test_offline_mode_is_kept_to(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("org/name", "HF_HUB_OFFLINE", "not in the hub's cache")


def test_without_the_client(monkeypatch):
    monkeypatch.setattr("burnish.load.hub.importlib.util.find_spec", lambda name: None)
    refused("org/name", "huggingface_hub", "burnish[models]")


FILES = ["config.json", "model.safetensors", "tokenizer.json", "README.md", "modeling_x.py", "chat_template.jinja"]


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (FILES, ["chat_template.jinja", "config.json", "tokenizer.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin"], ["config.json", "pytorch_model.bin"]),
        (["config.json", "pytorch_model.bin", "model.safetensors"], ["config.json", "model.safetensors"]),
        (["config.json", "a/model.safetensors"], []),
        (["config.json", "training_args.bin", "adapter.safetensors", "consolidated.safetensors"], []),
        (["model-00001-of-00002.safetensors", "model.safetensors.index.json"],
         ["model.safetensors.index.json", "model-00001-of-00002.safetensors"]),
        (["additional_chat_templates/default.jinja", "x/y.json", "model.safetensors"],
         ["additional_chat_templates/default.jinja", "model.safetensors"]),
        (["config.json", "x.gguf"], []),
    ],
)  # fmt: skip
def test_which_files_are_taken(files, taken):
    assert wanted(files) == taken


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("org/name", ("org/name", None)),
        ("org/na.me-1@v1.0", ("org/na.me-1", "v1.0")),
        ("org/name@refs/pr/3", ("org/name", "refs/pr/3")),
        ("name", None),
        ("a/b/c", None),
        ("../b", None),
        ("/etc/passwd", None),
        ("org/name@", None),
        ("org/name@x y", None),
        ("org/name\n", None),
    ],
)
def test_how_a_model_of_the_hub_is_spelled(source, want):
    assert parse(source) == want
