"""Hardware: tables whose every figure has a source, this machine, and the verbs that show and measure it."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from burnish import hardware, machine_probe
from burnish.cli import code_of
from burnish.cluster import cluster
from burnish.errors import UserError
from burnish.hardware import GIB, chip, chips, graphics
from burnish.interconnect import Link, links
from burnish.machine_file import text
from burnish.machine_probe import measure

GENERATIONS = {"volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-ultra", "cdna3", "cpu"}
# Formats a generation has matrix units for, beside fp32.
UNITS = {
    "volta": {"fp16"},
    "turing": {"fp16"},
    "ampere": {"tf32", "bf16", "fp16"},
    "ada": {"tf32", "bf16", "fp16", "fp8"},
    "hopper": {"tf32", "bf16", "fp16", "fp8"},
    "cdna3": {"tf32", "bf16", "fp16", "fp8"},
    "blackwell": {"tf32", "bf16", "fp16", "fp8", "fp4"},
    "blackwell-ultra": {"tf32", "bf16", "fp16", "fp8", "fp4"},
    "cpu": {"bf16"},
}


@pytest.mark.parametrize("key", sorted(chips()))
def test_a_chip_has_a_source_and_the_formats_of_its_generation(key: str) -> None:
    found = chips()[key]
    assert found.architecture in GENERATIONS
    assert set(found.flops) - {"fp32"} == UNITS[found.architecture]
    assert any(year in found.source for year in map(str, range(2017, 2027))) or "computed" in found.source
    assert {found.link, found.network} <= set(links())
    assert found.accelerator == (found.architecture != "cpu")
    doubled = [found.flops[form] for form in ("bf16", "fp8", "fp4") if form in found.flops]
    assert all(low > 1.97 * high for high, low in pairwise(doubled)), "half the bits, at least twice the rate"
    name = found.name.split()
    if "GB" in name:
        stated = float(name[name.index("GB") - 1])
        assert 0.9 < found.memory / GIB / stated < 1.0, "a program sees a little less than the data sheet states"


@pytest.mark.parametrize("name", sorted(links()))
def test_a_link_has_one_rate_and_a_source(name: str) -> None:
    row = links()[name]
    assert ("gbyte" in row) != ("node_gbit" in row)
    assert row["source"]
    assert 5e-6 <= row["latency"] <= 1e-4


def test_ratios_that_the_data_sheets_state() -> None:
    """A generation of links doubles; GB200 has a domain of 72 and nodes of 4; H100 computes 3.17 times an A100."""
    assert links()["nvlink5"]["gbyte"] == 2 * links()["nvlink4"]["gbyte"] == 3 * links()["nvlink3"]["gbyte"]
    assert links()["infiniband-xdr"]["gbyte"] == 2 * links()["infiniband-ndr"]["gbyte"]
    for key in ("gb200", "gb300"):
        assert (chips()[key].per_node, chips()[key].domain) == (4, 72)
    assert chips()["h100-sxm"].flops["bf16"] / chips()["a100-80gb"].flops["bf16"] == pytest.approx(3.17, rel=0.01)
    assert chip("h200").memory > 1.7 * chip("h100-sxm").memory


def test_a_recipe_names_a_chip_by_its_key() -> None:
    with pytest.raises(UserError, match=r"machine\.chip 'h100-sxn': unknown; did you mean 'h100-sxm'"):
        chip("h100-sxn")


def test_cards_are_those_that_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\nprintf 'NVIDIA H100 80GB HBM3, 81559\\nNVIDIA H100 80GB HBM3, 81559\\n'\n", encoding="utf-8"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(hardware.shutil, "which", lambda name: str(tool))
    assert graphics() == [("NVIDIA H100 80GB HBM3", 81559 * 2.0**20)] * 2
    assert str(cluster("here")) == "h100-sxm:1x2"
    tool.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n", encoding="utf-8")
    assert graphics() == []
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)
    assert graphics() == []


def test_a_probe_gives_a_file_that_is_a_calibrated_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert code_of(["hardware", "probe", "--device", "cpu", "--save", "here.toml"]) == 0
    assert "here.toml written" in capsys.readouterr().out
    made = cluster("here.toml")
    assert made.chip.calibrated.startswith("measured on this machine 20")
    assert made.chip.measured
    assert made.chip.architecture == "cpu"
    assert not made.chip.accelerator
    assert 1e9 < made.chip.flops["fp32"] < 1e14
    assert 1e9 < made.chip.bandwidth < 1e12
    assert 1e-8 < made.chip.launch < 1e-3
    assert made.gpus == 1


def test_what_a_probe_found_reads_back_as_it_was(tmp_path: Path) -> None:
    card = chip("rtx-4090")
    found = replace(card, flops={"fp32": 6.1e13, "bf16": 1.4e14}, bandwidth=9.2e11, launch=4.5e-6)
    path = tmp_path / "two.toml"
    path.write_text(text(found, 2, Link("pcie4", 2.2e10, 1.8e-5, "measured on this machine")), encoding="utf-8")
    made = cluster(str(path))
    assert (made.per_node, made.link.bandwidth, made.link.latency, made.link.name) == (2, 2.2e10, 1.8e-5, "pcie4")
    assert (made.chip.flops, made.chip.launch, made.network.name) == (found.flops, 4.5e-6, "ethernet-25")
    assert made.chip.memory == pytest.approx(card.memory, rel=1e-3)


def test_an_unheard_of_card_is_of_the_generation_of_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_probe, "graphics", list)
    for capability, generation in (
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada"),
        ((12, 0), "blackwell"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=capability: found)
        made = machine_probe._kin(hardware.Chip("Unheard Of", 2.0**34), "cuda")
        assert (made.architecture, made.link) == (generation, "pcie4")
    assert machine_probe._kin(hardware.Chip("NVIDIA H200", 143771 * 2.0**20), "cuda").key == "h200"


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device was found here; use cpu"):
        measure("cuda")
    with pytest.raises(UserError, match="--device tpu: cpu or cuda"):
        measure("tpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "h1oo"], "chip 'h1oo': unknown"),
        (["show", ""], "no name"),
        (["probe", "--save", "here.txt"], "must end in .toml"),
        (["probe", "--device", "tpu"], "cpu or cuda"),
        (["probe", "--device", "cpu", "--save", "file/here.toml"], "cannot be written"),
    ],
)
def test_bad_arguments_end_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert code_of(["hardware", *arguments]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_the_verbs_print_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["hardware", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(chips()) + 3
    assert max(map(len, lines)) <= 100
    assert next(line for line in lines if line.startswith("t4 ")).split()[3:7] == ["-", "65", "-", "-"]
    assert next(line for line in lines if line.startswith("l40s")).split()[-3:] == ["8/8", "pcie4", "no"]
    for key in chips():
        assert code_of(["hardware", "show", key]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
    assert code_of(["hardware", "show", "GB200"]) == 0
    shown = capsys.readouterr().out
    assert "72 share nvlink5, 900 GB/s each way" in shown
    assert "NVIDIA GB200 NVL72 datasheet (2024)" in shown
    assert code_of(["hardware", "show", "rtx 3090", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == "rtx-3090"
    assert code_of(["hardware", "detect"]) == 0
    assert "cluster: here" in capsys.readouterr().out
    assert code_of(["hardware", "detect", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == "here"


def test_the_page_has_every_figure_and_source() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in page.splitlines()
        if line.startswith("| `")
    }
    for key, found in chips().items():
        listed = next(line for line in page.splitlines() if line.startswith(f"| `{key}` | ") and line.count("|") == 15)
        cells = [cell.strip() for cell in listed.split("|")[2:-1]]
        rates = [found.flops.get(form, 0.0) for form in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")]
        assert cells[:2] == [f"{found.memory / GIB:.1f}", f"{found.bandwidth / 1e12:.3g}"]
        assert cells[2:8] == [f"{rate / 1e12:.5g}" if rate else "\u2013" for rate in rates]
        assert cells[8:] == [
            found.architecture,
            f"{found.per_node} / {found.domain or found.per_node}",
            found.link,
            found.network,
            "yes" if found.calibrated else "no",
        ]
        assert f"| `{key}` | {found.source} |" in page
    for name, row in links().items():
        rate = row.get("gbyte") or f"{row['node_gbit']} Gb/s a node"
        assert rows[f"`{name}`"] == [str(rate), f"{row['latency'] * 1e6:.0f}", row["source"]]


def test_naming_hardware_loads_no_torch() -> None:
    code = (
        "import sys; from burnish.cli import code_of; code_of(['hardware', 'list']); assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
