"""Clusters from short texts and files: every text is a cluster whose text reads as the same one, or one line of error."""

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish import cluster as module
from burnish.cluster import Cluster, chip_for, cluster, link_for, network_for
from burnish.errors import UserError
from burnish.hardware import GIB, chips
from burnish.interconnect import links
from burnish.job import Job
from burnish.presets import preset
from burnish.rates import rates
from burnish.stack import stacks

PLANNER = Path(__file__).parents[3] / "shared" / "data" / "planner"
NETWORKS = [name for name in links() if name.startswith(("infiniband", "ethernet", "roce"))]
OWN = "[chip]\nmemory_gib = 3\nbandwidth = 1e9\n"


def shape(made: Cluster) -> tuple[int, int, int]:
    return made.nodes, made.per_node, made.domain


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ("h100-sxm:8x8", "h100-sxm", (8, 8, 8)),
        ("h100-sxm:64", "h100-sxm", (8, 8, 8)),
        ("h100-sxm:1x64", "h100-sxm", (1, 64, 64)),
        ("h100-sxm:8x8,domain=64", "h100-sxm", (8, 8, 64)),
        ("h100-sxm:16x8+domain=32+network=roce-400", "h100-sxm", (16, 8, 32)),
        ("gb200:72", "gb200", (18, 4, 72)),
        ("gb200:2048", "gb200", (512, 4, 72)),
        ("gb300:8", "gb300", (2, 4, 8)),
        ("h100-nvl:8", "h100-nvl", (1, 8, 2)),
        ("RTX 4090:2", "rtx-4090", (1, 2, 2)),
        ("A100", "a100-80gb", (1, 8, 8)),
        ("A100 40GB:4x4", "a100-40gb", (4, 4, 4)),
        ("h200:12,per_node=4", "h200", (3, 4, 4)),
        (" h200 : 2 x 8 ", "h200", (2, 8, 8)),
    ],
)
def test_a_text_says_how_many_and_how_they_are_joined(text: str, key: str, wanted: tuple[int, int, int]) -> None:
    made = cluster(text)
    assert (made.chip.key, shape(made)) == (key, wanted)
    assert made.gpus == wanted[0] * wanted[1]


def test_a_chip_gets_its_share_of_what_a_node_sends() -> None:
    fast, slow = cluster("h100-sxm:8x8"), cluster("h100-sxm:8x8,network=ethernet-100")
    assert (fast.link.bandwidth, fast.network.bandwidth) == (450e9, 50e9)
    assert slow.network.bandwidth == 100e9 / 8 / 8
    assert cluster("h100-sxm:8x4,network=ethernet-100").network.bandwidth == 100e9 / 8 / 4
    assert cluster("v100:2x8").network.bandwidth == 6.25e9


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(chips())),
    st.integers(1, 4096),
    st.integers(1, 128),
    st.none() | st.sampled_from(NETWORKS),
    st.none() | st.sampled_from(sorted(links())),
    st.none() | st.integers(1, 512),
)
def test_the_text_of_a_cluster_reads_as_the_same_one(
    key: str, nodes: int, per_node: int, network: str | None, link: str | None, whole: int | None
) -> None:
    options = {"network": network, "link": link, "domain": whole and min(whole, nodes) * per_node}
    text = f"{key}:{nodes}x{per_node}" + "".join(f",{name}={value}" for name, value in options.items() if value)
    made = cluster(text)
    assert cluster(str(made)) == made
    assert (made.nodes, made.per_node, made.chip.key) == (nodes, per_node, key)
    assert made.network.name == (network or chips()[key].network)
    assert made.link.name == (link or chips()[key].link)
    assert made.domain == options["domain"] or (whole is None and made.domain <= made.gpus)
    assert made.domain % per_node == 0 or per_node % made.domain == 0


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("h100-sxmgb2 :x,+=.0389/_domainetwork\n"), max_size=30) | st.text(max_size=30))
def test_any_text_is_a_cluster_or_one_line(text: str) -> None:
    said = ""
    try:
        made = cluster(text)
        assert made.gpus >= 1
        assert cluster(str(made)) == made
    except UserError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h100:0", "number of chips is 0; 1 to"),
        ("h100:-8", "number of chips is -8; 1 to"),
        ("h100:0x8", "number of nodes is 0"),
        ("h100:8x0", "chips of a node is 0"),
        ("h100:many", "number of chips 'many' is not a whole number"),
        ("h100:1.5", "'1.5' is not a whole number"),
        ("h100:8x8x8", "'8x8' is not a whole number"),
        ("h100:12", "12 chips do not fill nodes of 8; write 1x8, 2x8, or 1x12"),
        ("h100:", "no count behind the colon"),
        ("", "no chip"),
        (":8", "no chip"),
        ("h200x:8", "chip 'h200x': unknown; did you mean 'h200'"),
        ("A100 64GB:8", "none with 64 GB; known: a100-80gb (80 GB), a100-40gb (40 GB)"),
        ("h100:8x8,network=ethernet-1000", "network 'ethernet-1000': unknown; did you mean 'ethernet-100'"),
        ("h100:8x8,link=nvlink9", "link 'nvlink9': unknown; did you mean 'nvlink"),
        ("h100:8x8,netwrok=x", "unknown option 'netwrok'; did you mean 'network'"),
        ("h100:8x8,domain", "domain has no value"),
        ("h100:8x8,domain=8,domain=16", "domain is given twice"),
        ("h100:8x8,domain=12", "domain 12 must be whole nodes of 8"),
        ("h100:2x8,domain=64", "at most 16"),
        ("h100:8x8,per_node=4", "given twice"),
        ("nowhere.toml", "nowhere.toml: no such file"),
    ],
)
def test_what_is_no_cluster_is_said_with_what_works(text: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        cluster(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_in_use_mean_the_chip_of_that_memory() -> None:
    for name, memory, key in (
        ("A100 SXM", 80, "a100-80gb"),
        ("A100 SXM", 40, "a100-40gb"),
        ("A100", None, "a100-80gb"),
        ("H100 SXM", 80, "h100-sxm"),
        ("H100 96GB", 96, "h100-96gb"),
        ("NVIDIA H100 80GB HBM3", None, "h100-sxm"),
        ("NVIDIA A100-SXM4-40GB", None, "a100-40gb"),
        ("Tesla V100-SXM2-32GB", None, "v100-32gb"),
        ("B200 (power limited)", 180, "b200"),
        ("RTX A6000", 48, "a6000"),
        ("RTX 4070Ti SUPER", 16, "rtx-4070ti-super"),
        ("GB300", 288, "gb300"),
        ("A10", 23, "a10"),
    ):
        assert chip_for(name, memory).key == key, name
    with pytest.raises(UserError, match=r"chip 'TPU v5p': unknown"):
        chip_for("TPU v5p", 95)


def test_every_chip_and_network_of_the_published_rows_is_known() -> None:
    if not PLANNER.exists():
        pytest.skip("the published rows are not here")
    for table in ("rows_training.csv", "rows_memory_ci.csv"):
        with (PLANNER / table).open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            if not row["gpu"].startswith("TPU"):
                chip = chip_for(row["gpu"], float(row["gpu_mem_gb"]) if row["gpu_mem_gb"] else None)
                assert network_for(chip, row.get("interconnect", "")).bandwidth > 0
    assert network_for("A100", "NVLink + 1600 Gbps RoCE per node").bandwidth == 25e9
    assert network_for("H100", "NVLink + 400 Gbps RoCE").bandwidth == 50e9
    assert network_for("A100", "NVSwitch + 8x200 Gbps HDR per node").name == "infiniband-hdr"
    assert link_for("NVIDIA A100 SXM 80 GB").bandwidth == 300e9


def test_here_is_the_processor_or_the_cards_that_the_driver_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "graphics", list)
    made = cluster("here")
    assert (str(made), made.gpus, made.chip.architecture) == ("here", 1, "cpu")
    assert cluster(str(made)) == made
    assert made.chip.flops["fp32"] == pytest.approx(chips()["cpu"].flops["fp32"] * made.chip.threads / 16)
    monkeypatch.setattr(module, "graphics", lambda: [("NVIDIA GeForce RTX 4090", 24564 * 2.0**20)] * 2)
    assert (cluster("here").chip.key, str(cluster("here"))) == ("rtx-4090", "rtx-4090:1x2")
    monkeypatch.setattr(module, "graphics", lambda: [("NVIDIA Unheard Of", 2.0**34)])
    with pytest.raises(UserError, match=r"'NVIDIA Unheard Of': unknown.*hardware probe --save"):
        cluster("here")


def test_a_file_describes_a_cluster_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        'nodes = 3\nper_node = 2\ndomain = 1\nlink = "pcie4"\n[chip]\nname = "Lab card"\nmemory_gib = 20\nbandwidth = 5e11\n'
        "flops = { fp32 = 2e13, bf16 = 8e13 }\n[network]\nbandwidth = 1e9\n",
        encoding="utf-8",
    )
    made = cluster(str(path))
    assert (made.chip.name, made.chip.memory, made.chip.flops["bf16"]) == ("Lab card", 20 * GIB, 8e13)
    assert (shape(made), made.network.name, made.network.bandwidth) == ((3, 2, 1), "network", 1e9)
    assert made.chip.calibrated == ""
    assert cluster(str(made)) == made
    path.write_text('chip = "gb200"\nnodes = 18\nnetwork = "ethernet-400"\n', encoding="utf-8")
    assert shape(cluster(str(path))) == (18, 4, 72)


@pytest.mark.parametrize(
    ("figures", "generation"),
    [
        ("flops = { bf16 = 1e14, fp8 = 2e14 }", "hopper"),
        ("flops = { fp16 = 1e14 }", "turing"),
        ("flops = { bf16 = 1e12 }\nthreads = 8", "cpu"),
    ],
)
def test_a_chip_of_no_stated_generation_has_that_of_its_formats(figures: str, generation: str, tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(f"{OWN}{figures}\n", encoding="utf-8")
    made = cluster(str(path))
    assert made.chip.architecture == generation
    job = Job(preset("llama-3.2-1b"), 512, 8, next(iter(made.chip.flops)))
    assert rates(job, made, stacks()["torch"]).matmul > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nodes = 2", "chip is missing"),
        ("nodes = ", "not readable as TOML"),
        ('chip = "h100"\nnode = 2', "unknown key 'node'; did you mean 'nodes'"),
        ('chip = "h100"\nnodes = 0', "nodes is 0; a whole number from 1"),
        ('chip = "h100"\nnodes = true', "nodes is True"),
        ('chip = "h100"\nnodes = "2"', "nodes is '2'"),
        ('chip = "h1000"', "chip 'h1000': unknown"),
        ("chip = 3", "chip is 3; a name in quotes or a table"),
        ('chip = "h100"\ndomain = 3', "domain 3 must be"),
        ('chip = "h100"\nlink = "nvlnk4"', "link 'nvlnk4': unknown; did you mean 'nvlink4'"),
        ('chip = "h100"\nlink = { speed = 3 }', "a table with bandwidth"),
        ('chip = "h100"\nlink = { bandwidth = 0 }', "link.bandwidth is 0; a number from 10000 to 1e+16"),
        *(
            (f'chip = "h100"\nnetwork = {{ bandwidth = {value} }}', f"network.bandwidth is {value}; a number from")
            for value in ("1e-300", "nan", "inf", "-inf", "-5")
        ),
        (f"{OWN}flops = {{ bf16 = 0 }}", "chip.flops.bf16 is 0; a number from 1e+06 to 1e+20"),
        (f"{OWN}flops = {{ bf17 = 1e12 }}", "chip.flops: unknown key 'bf17'; did you mean 'bf16'"),
        (f"{OWN}flops = {{ bf16 = 1e12 }}\narchitecture = 'martian'", "known: ada, ampere, blackwell"),
        (f"{OWN}flops = {{ bf16 = 1e12 }}\narchitecture = 'hoper'", "did you mean 'hopper'? known: ada"),
        *(
            (f"[chip]\nmemory_gib = {size}\nbandwidth = 1e9\nflops = {{ bf16 = 1e12 }}", "chip.memory_gib is")
            for size in ("0", "1e30", "inf")
        ),
        ("[chip]\nmemory_gib = 3\nbandwidth = 1e9", "chip.flops is missing"),
        ("[chip]\nmemory_gib = -3\nbandwidth = 1e9\nflops = { bf16 = 1e12 }", "chip.memory_gib is -3"),
        ("[chip]\nmemory_gib = nan\nbandwidth = 1e9\nflops = { bf16 = 1e12 }", "chip.memory_gib is nan"),
        ("[chip]\nmemory_gib = 3\nbandwidth = 1e9\nflops = {}", "chip.flops is {}"),
        ("[chip]\nmemory_gib = 3\nbandwidth = 1e9\nflops = { bf16 = 'x' }", "chip.flops.bf16 is 'x'"),
        (
            "[chip]\nmemory = 3\nbandwidth = 1e9\nflops = { bf16 = 1e12 }",
            "unknown key 'memory'; did you mean 'memory_gib'",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_key(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"lab\.toml") as raised:
        cluster(str(path))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
