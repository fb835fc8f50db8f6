"""The hardware verbs: list and show chips, name this machine, and measure it."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from burnish.errors import MissingExtra, UserError

hardware = typer.Typer(help="List known chips; name and measure this machine.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@hardware.command("list")
def hardware_list(json: Json = False) -> None:
    """List the chips that can be planned for."""
    from burnish import hardware_text
    from burnish.hardware import chips

    if json:
        print(json_.dumps({key: chip.record() for key, chip in chips().items()}, indent=1))
    else:
        print("\n".join(hardware_text.listed()))


@hardware.command("show")
def hardware_show(
    chip: Annotated[str, typer.Argument(help="A chip, such as h100-sxm or 'RTX 4090'.")], json: Json = False
) -> None:
    """Show one chip, its links, and the source of each figure."""
    from burnish import hardware_text
    from burnish.hardware import chip_for

    found = chip_for(chip)
    print(json_.dumps(found.record(), indent=1) if json else "\n".join(hardware_text.described(found)))


@hardware.command("detect")
def hardware_detect(json: Json = False) -> None:
    """Say what this machine is, without measuring it; needs no torch."""
    from burnish import hardware_text

    print(json_.dumps(hardware_text.machine(), indent=1) if json else "\n".join(hardware_text.detected()))


@hardware.command("probe")
def hardware_probe(
    save: Annotated[Path | None, typer.Option(help="Write a TOML file for `--cluster FILE`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
    json: Json = False,
) -> None:
    """Measure this machine, so that plans for it rest on its own rates; takes seconds and needs torch."""
    from burnish import hardware_text, machine_file

    if save is not None and save.suffix.lower() != ".toml":
        raise UserError(f"--save {save}: the name must end in .toml")
    try:
        import torch
    except ImportError:
        raise MissingExtra("hardware probe", "train", "torch") from None
    from burnish.machine_probe import measure
    from burnish.records import write_text

    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    chip, count, link = measure(wanted)
    if save is not None:
        write_text(save, machine_file.text(chip, count, link))
    print(json_.dumps(chip.record(), indent=1) if json else "\n".join(hardware_text.probed(chip, count, link)))
    if save is not None and not json:
        print(f"{save} written; try: burnish plan llama-3.2-1b --cluster {save} --seq 1024 --batch 8")
