"""Show: plans, reports and verdicts as text in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from burnish.records import Plan
from burnish.reported import Report
from burnish.streams import printable
from burnish.units import counted, signed_percent
from burnish.units import show as text
from burnish.verified import Verified
from burnish.verified_part import drop_of

if TYPE_CHECKING:
    from burnish.prove.claim import Verdict

KINDS = ("parameters", "gradients", "optimizer", "saved", "passing", "reserve", "peak")


def plan(made: Plan, console: Console | None = None) -> None:
    """Print what a recipe will do and take."""
    out = console or Console()
    out.print(f"[bold]{printable(made.recipe)}[/bold] on {printable(made.machine)}")
    out.print(_step(made.batch), highlight=False)
    for number, taken in enumerate(made.passes, 1):
        only = " [yellow](planned only)[/yellow]" if taken.plan_only else ""
        out.print(f"pass {number}: [bold]{taken.technique}[/bold]{only}, {taken.reason}", highlight=False)
    table = Table("predicted, one rank", "", box=None, header_style="dim")
    for kind in KINDS:
        if kind in ("passing", "reserve") and not made.predicted.get(f"memory.{kind}"):
            continue
        table.add_row(f"memory: {kind}", text(made.predicted[f"memory.{kind}"], "bytes"))
    if made.capacity:
        table.add_row("memory: there is", text(made.capacity, "bytes"))
    for key, name, unit in (
        ("parameters", "parameters of the model", "short count"),
        ("flops.step", "work of a step", "FLOPs"),
        ("comm.bytes", "sent in a step", "bytes"),
        ("seconds.step", "time of a step", "seconds"),
    ):
        if key in made.predicted:
            table.add_row(name, text(made.predicted[key], unit))
        if key == "comm.bytes":
            for axis, size in _by_axis(made):
                table.add_row(f"  of it {axis}", text(size, "bytes"))
    out.print(table)
    for note in made.notes:
        out.print(f"note: {printable(note)}", style="dim", highlight=False)
    verdict = {
        True: "[green]fits[/green]",
        False: "[red]does not fit[/red]",
        None: "memory of this device is not known",
    }
    out.print(verdict[made.fits])


def _step(batch: Mapping[str, int]) -> str:
    """What goes into a step, and into all of them."""
    if "images" in batch:
        return (
            f"step: {counted(batch['global_batch'], 'image')}, {batch['micro_batch']} at once; "
            f"{counted(batch['steps'], 'step')}, {batch['images']:,} images"
        )
    return (
        f"step: {counted(batch['global_batch'], 'row')} = {batch['tokens_per_step']:,} tokens; a rank takes "
        f"{counted(batch['rows_per_rank'], 'row')} in {counted(batch['micro_batches'], 'micro batch', 'es')} of "
        f"{batch['micro_batch']}; {counted(batch['steps'], 'step')}, {batch['tokens']:,} tokens"
    )


def _by_axis(made: Plan) -> list[tuple[str, float]]:
    """Bytes sent in a step on each axis of ranks, where a plan tells them apart."""
    prefix = "comm.bytes."
    return [(key.removeprefix(prefix), size) for key, size in made.predicted.items() if key.startswith(prefix)]


def report(made: Report, console: Console | None = None) -> None:
    """Print the figures of a run, predicted beside measured."""
    out = console or Console()
    table = Table("quantity", "predicted", "measured", "error", box=None, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in made.rows:
        sides = (text(row.predicted, row.unit), text(row.measured, row.unit))
        table.add_row(row.label, *sides, signed_percent(row.error_percent))
    out.print(table)
    for name, value in made.quality.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        out.print(f"{name.replace('_', ' ')}: {shown}", highlight=False)
    checks(made.checks, out)
    if made.verified is not None:
        verified(made.verified, out)
    for sample in made.samples:
        out.print(f"\n[bold]{sample.prompt}[/bold]{sample.text}", highlight=False)


def verified(made: Verified, console: Console | None = None) -> None:
    """Print a compressed model beside what it was, then its parts where somebody looked."""
    out = console or Console()
    table = Table("quantity", "before", "after", "predicted", "change", box=None, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    judged = made.judged
    table.add_row(
        printable(judged.name), f"{judged.baseline:.4f}", f"{judged.compressed:.4f}", text(None, ""), drop_of(judged)
    )
    for cost in made.costs:
        sides = (text(value, cost.unit) for value in (cost.baseline, cost.compressed, cost.predicted))
        ratio = 100 * (cost.compressed / cost.baseline - 1) if cost.baseline and cost.compressed is not None else None
        table.add_row(cost.label, *sides, signed_percent(ratio))
    for name, value in made.agreement.items():
        table.add_row(name, text(None, ""), f"{value:.4g}", text(None, ""), "")
    out.print(table)
    if made.parts:
        each = Table("part alone", made.divergence_unit, "saves", "", box=None, header_style="dim")
        for part in sorted(made.parts, key=lambda part: -part.divergence):
            each.add_row(
                part.name, f"{part.divergence:.3g}", text(part.bytes_saved, "bytes"), "kept" if part.kept else ""
            )
        out.print(each)
    if made.kept:
        out.print(f"kept as they were: {', '.join(made.kept)}", highlight=False)
    for note in made.notes:
        out.print(f"note: {printable(note)}", style="dim", highlight=False)


def checks(found: Mapping[str, bool | float | str], console: Console | None = None) -> None:
    """Print the checks of an exported model."""
    out = console or Console()
    for name, value in found.items():
        mark = (
            {True: "[green]yes[/green]", False: "[red]no[/red]"}.get(value, str(value))
            if isinstance(value, bool)
            else value
        )
        out.print(f"check: {name.replace('_', ' ')}: {mark}", highlight=False)


def verdicts(found: Sequence[Verdict], console: Console | None = None) -> None:
    """Print claims with what was expected, measured and concluded; one claim alone is explained."""
    out = console or Console()
    table = Table("claim", "expected", "measured", "verdict", box=None, header_style="dim")
    for verdict in found:
        mark = "[green]holds[/green]" if verdict.holds else "[red]does not hold[/red]"
        table.add_row(verdict.claim, verdict.expected, verdict.measured, mark)
    out.print(table)
    if len(found) == 1:
        only = found[0]
        for name, value in (("claim", only.statement), ("varied", only.varied), ("held", only.held), ("why", only.why)):
            out.print(f"[bold]{name}[/bold]: {value}", highlight=False)
        out.print(f"[bold]source[/bold]: {only.source}\n[bold]code[/bold]: {only.code}", highlight=False)
