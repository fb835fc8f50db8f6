"""The compress verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option


@dataclass(frozen=True)
class Options:
    """What `burnish compress` takes."""

    model: Annotated[str, Argument(help="A model folder, a run folder, a GGUF file, or the name of a model.")]
    changes: Annotated[list[str] | None, Argument(help="Settings such as group=64, or awq.group=64.")] = None
    technique: Annotated[str, Option("--with", help="Techniques, such as awq or prune,awq.")] = ""
    calibrate: Annotated[list[str] | None, Option(help="Text that activations are looked at on; may be repeated.")] = (
        None
    )
    text: Annotated[list[str] | None, Option(help="Text that both models are judged on; may be repeated.")] = None
    task: Annotated[Path | None, Option(help="Labelled examples that both are judged on.")] = None
    metric: Annotated[str | None, Option(help="perplexity, accuracy, cosine, or FILE.py:FUNCTION.")] = None
    max_drop: Annotated[str | None, Option(help="Most that may be lost: 2%, or points of accuracy.")] = None
    fallback: Annotated[str, Option(help="Over it: refuse, or mixed (keep the fewest parts as they were).")] = "refuse"
    out: Annotated[Path | None, Option(help="Folder of the compressed model.")] = None
    sensitivity: Annotated[bool, Option("--sensitivity", help="Also look at every part by itself.")] = False
    rows: Annotated[int, Option(help="Rows to calibrate on.")] = 128
    length: Annotated[int, Option(help="Tokens of a row.")] = 512
    tokens: Annotated[int, Option(help="Tokens to judge on.")] = 16384
    text_field: Annotated[str, Option(help="Key or column that holds the text.")] = "text"
    reader: Annotated[str | None, Option("--for", help="Server that shall read the folder: vllm.")] = None
    tp: Annotated[int | None, Option(help="Cards that the server divides the model over.")] = None
    state: Annotated[Path | None, Option(help="Folder from which a killed search goes on.")] = None
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False


def compress(options: Options) -> None:
    """Make a model smaller within a stated loss, judged on text or labels of one's own."""
    from burnish.compressions import NAMES, asked, by_technique
    from burnish.errors import UserError
    from burnish.finished import require_torch
    from burnish.recipe_files import parse_override

    if options.out is None:
        raise UserError("say where the compressed model goes with --out FOLDER")
    names = tuple(name.strip() for name in options.technique.split(",") if name.strip())
    if not names:
        raise UserError(f"nothing to do; name techniques with --with: {', '.join(NAMES)}")
    if not options.text and options.task is None:
        raise UserError("nothing to judge by; name a text with --text, or labelled examples with --task")
    own = {key: value for key, value in vars(options).items() if key not in ("model", "changes", "out", "json")}
    settings = by_technique(names, dict(map(parse_override, options.changes or ())))
    task = None if options.task is None else str(options.task)
    made = asked(own | {"technique": names, "settings": settings, "task": task})
    require_torch("burnish compress")
    _run(options.model, made, options.out, options.json)


def _run(model: str, asked: Any, out: Path, json: bool) -> None:
    from burnish import show
    from burnish.compress.flow import compress as run
    from burnish.compress.subject import subject_of
    from burnish.compress.verify import OverBudget
    from burnish.load.source import open_model
    from burnish.progress import Screen
    from burnish.runnable import pick_device

    held = [technique.name for technique, _ in asked.chosen() if technique.processor]
    device, why = ("cpu", f"where {held[0]} works") if held else pick_device("auto")
    screen = Screen()
    screen.say(f"{model} on {device} ({why})")
    try:
        verified, _ = run(subject_of(model, open_model(model), device), asked, out, screen)
    except OverBudget as error:
        print(error.verified.model_dump_json(indent=1)) if json else show.verified(error.verified)
        raise
    print(verified.model_dump_json(indent=1)) if json else show.verified(verified)
    screen.say(f"{out}: written, read again and equal; report: {out / 'report.html'}")
