"""The command line: parse, call, print. No logic lives here, and each verb imports what it needs when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish import __version__, streams
from burnish.cli_annotations import Options as AnnotationOptions
from burnish.cli_annotations import check_annotations
from burnish.cli_bench import bench
from burnish.cli_chat import Options as ChatOptions
from burnish.cli_chat import chat
from burnish.cli_compress import Options as CompressOptions
from burnish.cli_compress import compress
from burnish.cli_embed import embed
from burnish.cli_eval import evaluate
from burnish.cli_export import Options as ExportOptions
from burnish.cli_export import export
from burnish.cli_generate import Options as GenerateOptions
from burnish.cli_generate import generate
from burnish.cli_hardware import hardware
from burnish.cli_launch import Nproc, Restarts, launch, run_words, start_here
from burnish.cli_models import register as register_models
from burnish.cli_plan import Options as PlanOptions
from burnish.cli_plan import plan
from burnish.cli_practice import Options as PracticeOptions
from burnish.cli_practice import practice
from burnish.cli_predict import Options as PredictOptions
from burnish.cli_predict import predict
from burnish.cli_record import verb
from burnish.cli_serve import Options as ServeOptions
from burnish.cli_serve import serve
from burnish.cli_speculate import speculate
from burnish.errors import BurnishError, UserError

app = typer.Typer(
    name="burnish",
    help="Make a model fit, make it fast, and prove it: plan, train, export and measure one recipe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
STOPPED, TERMINATED = 130, 143  # as a shell reports SIGINT and SIGTERM
recipes = typer.Typer(help="List, show, check and start recipes.", no_args_is_help=True)
app.add_typer(recipes, name="recipe")
app.add_typer(hardware, name="hardware")
app.add_typer(bench, name="bench")
app.add_typer(speculate, name="speculate")

RecipeName = Annotated[str, typer.Argument(help="A shipped recipe, or a .yaml, .py or .py:function file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes such as train.steps=100.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/NAME.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace what an earlier run left in the folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Folder = Annotated[Path, typer.Argument(help="A run folder.")]


app.command("annotations")(verb(check_annotations, AnnotationOptions))
app.command("plan")(verb(plan, PlanOptions))
app.command("eval")(evaluate)
app.command("embed")(embed)
app.command("chat")(verb(chat, ChatOptions))
app.command("compress")(verb(compress, CompressOptions))
app.command("export")(verb(export, ExportOptions))
app.command("generate")(verb(generate, GenerateOptions))
app.command("launch")(launch)
app.command("practice")(verb(practice, PracticeOptions))
app.command("predict")(verb(predict, PredictOptions))
app.command("serve")(verb(serve, ServeOptions))
register_models(app)


@app.command()
def run(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Out = None,
    fresh: Fresh = False,
    nproc: Nproc = None,
    restarts: Restarts = 0,
) -> None:
    """Plan, train, export, verify and report a recipe; a stopped run goes on where it was."""
    if nproc is not None:
        raise SystemExit(start_here("run", recipe, overrides or [], run_words(out, fresh), nproc, restarts))
    from burnish import run as runner
    from burnish import show

    show.report(runner.run(recipe, overrides or (), out, fresh))


@app.command()
def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Out = None,
    fresh: Fresh = False,
    nproc: Nproc = None,
    restarts: Restarts = 0,
) -> None:
    """Plan and train only; `burnish export` and `burnish report` take the folder further."""
    if nproc is not None:
        raise SystemExit(start_here("train", recipe, overrides or [], run_words(out, fresh), nproc, restarts))
    from burnish import run as runner
    from burnish import show

    show.report(runner.run(recipe, overrides or (), out, fresh, stages=("train",)))


@app.command()
def report(run: Folder, json: Json = False) -> None:
    """Write a run's report again from its records, and print it."""
    from burnish import finished, show

    made = finished.report(run)
    print(made.model_dump_json(indent=1)) if json else show.report(made)


@app.command()
def prove(
    claim: Annotated[str | None, typer.Argument(help="One claim; all of them when left out.")] = None,
    json: Json = False,
    html: Annotated[Path | None, typer.Option(help="Where to write the page; prove.html for all claims.")] = None,
) -> None:
    """Measure claims on this machine: technique on, technique off, the number, the verdict."""
    from burnish import prove as proofs
    from burnish import prove_page, show

    place = html or (None if claim or json else Path("prove.html"))
    if place is not None:
        prove_page.check(place)
    verdicts = proofs.prove(claim)
    print(proofs.as_json(verdicts)) if json else show.verdicts(verdicts)
    if place is not None:
        prove_page.write(place, verdicts)
        print(f"page: {place}", file=sys.stderr if json else sys.stdout)
    if failed := [verdict.claim for verdict in verdicts if not verdict.holds]:
        raise BurnishError(f"did not hold here: {', '.join(failed)}")


@app.command()
def score(
    rows: Annotated[Path, typer.Argument(help="A CSV file of published runs, memory of test runs, or reports.")],
    json: Json = False,
    each: Annotated[bool, typer.Option("--rows", help="Also print every row.")] = False,
    stack_info: Annotated[bool, typer.Option("--stack-info", help="Also print profiles and defaults used.")] = False,
) -> None:
    """Predict published rows and print how far off the predictions are."""
    from burnish import score as scoring

    for line in scoring.shown(rows, json, each, stack_info):
        print(line if json else "\n".join(map(streams.printable, line.split("\n"))))


@recipes.command("list")
def recipe_list() -> None:
    """Name the shipped recipes."""
    from burnish.recipes import shipped

    for name, about in shipped().items():
        print(f"{name:<18}{about}")


@recipes.command("show")
def recipe_show(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Print a whole recipe as YAML, defaults included."""
    from burnish import recipe_files

    print(recipe_files.to_yaml(recipe_files.load_any(recipe, overrides or ())[0]), end="")


@recipes.command("validate")
def recipe_validate(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Check a recipe and that its texts are there, without running it."""
    from burnish import recipe_files
    from burnish.data.text import Texts
    from burnish.recipe import Recipe

    made, _ = recipe_files.load_any(recipe, overrides or ())
    if isinstance(made, Recipe) and made.machine.chip is None:
        for sources in (made.data.train, made.data.heldout):
            if sources:
                Texts.open(sources, made.data.text_field)
    print(f"{made.name}: valid")


@recipes.command("new")
def recipe_new(
    name: Annotated[str, typer.Argument(help="Name of the new recipe.")],
    base: Annotated[str, typer.Option("--from", help="Shipped recipe to start from.")] = "quickstart",
) -> None:
    """Start a recipe of one's own in this folder."""
    from burnish import recipe_files

    path = recipe_files.write_new(name, base, Path())
    print(f"{path} written; try: burnish plan {path}")


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; ends the process with the exit code of what happened."""
    streams.prepare()
    sys.exit(code_of(arguments))


def code_of(arguments: list[str] | None) -> int:
    """Run the command line and give its exit code; what a person should read of an error goes to stderr."""
    try:
        streams.check_words(sys.argv[1:] if arguments is None else arguments)
        code: Any = app(arguments, standalone_mode=False)
        streams.flush()
    except BurnishError as error:
        streams.complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, streams.Terminated) as error:
        code = STOPPED if isinstance(error, KeyboardInterrupt) else TERMINATED
    except (OSError, SystemExit) as error:
        streams.silence()
        if streams.reader_left(error):
            return 0
        if isinstance(error, SystemExit) or error.errno is None:
            raise
        streams.complain(f"{error.filename or 'standard output'}: {error.strerror}")
        return BurnishError.exit_code
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own errors: a missing argument, an unknown option
            if said := " ".join(error.format_message().split()):  # nothing to say beside the help it has printed
                streams.complain(said)
            return UserError.exit_code
        raise
    if code in (STOPPED, TERMINATED):
        streams.complain("stopped")
    return code if isinstance(code, int) else 0
