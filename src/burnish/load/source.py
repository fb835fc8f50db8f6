"""The one door for every MODEL a user names: a folder, a run, a GGUF file, a shipped name, or a model of the hub."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError, nearest
from burnish.load.checkpoint import Checkpoint
from burnish.load.folder import CONFIG, open_folder
from burnish.load.hub import parse, snapshot
from burnish.load.torch_needed import need_torch
from burnish.load.wheels import Progress, fetched, shipped_models

_RUN, _MODEL = "recipe.lock.yaml", "model"  # what a run folder has, and where its export lies
GGUF = ".gguf"


def open_model(source: str | Path, progress: Progress | None = None) -> Checkpoint:
    """The checkpoint that `source` names, fetched first where it is a shipped or hub name that is not here yet.

    What is on the disk goes before a name. Raises UserError: what is wrong with it, or what works and the nearest name.
    """
    place = located(source, progress)
    if place.is_dir():
        return open_folder(place)
    need_torch(f"{place}: reading a {GGUF} file")
    from burnish.load.gguf import open_gguf

    return open_gguf(place)


def located(source: str | Path, progress: Progress | None = None) -> Path:
    """The model folder or GGUF file that `source` names. Raises UserError as `open_model` does; opens nothing."""
    try:
        found = _on_disk(Path(source).expanduser())
    except (OSError, RuntimeError) as error:  # a folder that may not be looked into; a home that nobody has
        raise UserError(f"{source}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return found or _by_name(source, progress)


def _on_disk(path: Path) -> Path | None:
    if path.is_dir():
        return _of_run(path) if (path / _RUN).is_file() else _of_folder(path)
    if path.exists():
        if path.suffix.lower() != GGUF:
            raise UserError(
                f"{path}: is no {GGUF} file; name the folder it is in, which has config.json, or a {GGUF} file"
            )
        return path
    return None


def _by_name(source: str | Path, progress: Progress | None) -> Path:
    name = str(source)
    if name in shipped_models():
        return fetched(name, progress=progress)
    if isinstance(source, str) and not _looks_like_path(name) and (asked := parse(name)):
        return snapshot(*asked)
    raise UserError(
        f"{name}: no such folder or file; a model is a folder with config.json, a run folder, a {GGUF} file, "
        f"ORG/NAME of the hub, or a shipped name ({nearest(name, shipped_models())})"
    )


def _of_run(run: Path) -> Path:
    folder = run / _MODEL
    if not folder.is_dir():
        raise UserError(f"{run}: has no exported model yet; write it with `burnish export {run}`")
    return folder


def _of_folder(folder: Path) -> Path:
    """The folder, or the one GGUF file in a folder that is no model folder."""
    if (folder / CONFIG).exists():
        return folder
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() == GGUF)
    if len(files) > 1:
        raise UserError(f"{folder}: holds {len(files)} {GGUF} files; name one of them, such as {files[0]}")
    return files[0] if files else folder


def _looks_like_path(name: str) -> bool:
    """Whether a name that is nowhere on the disk was meant to be there; then the hub is not asked."""
    return name.startswith((".", "~", "/")) or Path(name).suffix.lower() == GGUF or Path(name).parent.is_dir()
