"""The import rule: who may import whom, no mutual imports, and which modules load no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tree import Source, sources

# A module imports from its own layer and those before it. A name is a file or folder of the package, or a file of a folder
# that stands apart from its folder: techniques use what compress measures, and compress holds what joins techniques.
LAYERS = (
    ("__init__", "errors"),
    ("tables", "units", "markup", "section", "mesh", "placement", "models", "verified", "speculation"),
    (
        "rope_scaling",
        "config",
        "work",
        "hardware",
        "records",
        "groups",
        "crew",
        "ranks",
        "mapping",
        "stack",
        "plan_schedule",
    ),
    ("interconnect", "architecture", "columns"),
    (
        "cluster",
        "machine_file",
        "machine_probe",
        "parameters",
        "job",
        "shapes",
        "decoder_parts",
        "expert_parts",
        "frozen_parts",
        "stage_cut",
    ),
    ("architecture_files", "hub_config", "presets", "hardware_text"),
    ("ops", "data", "describe", "pool_size", "reported", "tensors", "layout", "weight_format", "gguf_files"),
    ("encoders", "onnx_layout", "graph_size", "pruned_sizes", "served_slices", "export.folder"),
    ("vision.annotations",),
    ("load",),
    ("compress",),
    ("techniques",),
    ("passes", "compressions"),
    ("rates", "memory"),
    ("links", "timing", "data_time", "crossing", "step_time", "price"),
    ("serve_plan",),
    (
        "recipe",
        "recipes",
        "recipe_files",
        "vision.recipe",
        "vision.sections",
        "vision.request",
        "simulate",
        "chart",
        "document",
        "verified_part",
        "picture_part",
        "page",
        "report",
    ),
    ("rows", "ci_arguments", "ci_rows", "score"),
    ("plan_timeline",),
    ("plan_bars", "plan_pareto", "plan_reasons", "plan_page"),
    ("apply", "planner", "recipe_price", "precision_list", "plan", "lock", "run_folder", "launch", "bench_serve"),
    ("train", "export", "serve", "vision", "measure", "measure_live"),
    ("evaluation",),
    tuple(
        f"compress.{name}"
        for name in (
            "divergence",
            "metrics",
            "sensitivity",
            "subject",
            "judging",
            "verify",
            "passes",
            "written",
            "flow",
        )
    ),
    ("out_of_memory", "runnable", "progress", "found", "finished", "after_training"),
    ("vision.flow", "vision.learning", "vision.trained", "vision.deployed", "vision.smaller"),
    ("run",),
    ("prove",),
    ("prove_page",),
    ("practice",),
    (
        "streams",
        "show",
        "cli_annotations",
        "cli_plan",
        "cli_practice",
        "cli_generate",
        "cli_hardware",
        "cli_models",
        "cli_eval",
        "cli_bench",
        "cli_chat",
        "cli_compress",
        "cli_export",
        "cli_embed",
        "cli_launch",
        "cli_predict",
        "cli_record",
        "cli_engine",
        "cli_serve",
        "cli_answers",
        "cli_speculate",
        "cli",
        "__main__",
    ),
)
APART = {name for layer in LAYERS for name in layer if "." in name}
# Stricter than their layer: these import nothing of the package but the names given.
CLOSED = {
    "models": {"models"},
    "tables": {"tables"},
    "mesh": {"errors"},
    "work": {"mesh"},
    "document": {"markup", "units"},
    "page": {"reported", "chart", "document", "markup", "units", "verified_part", "picture_part"},
    "picture_part": {"records", "document", "markup"},
    "verified_part": {"verified", "document", "markup", "units"},
    "chart": {"reported", "markup"},
    "plan_schedule": set(),
    "plan_page": {
        *("document", "markup", "units"),
        *("plan_bars", "plan_pareto", "plan_reasons", "plan_timeline"),
    },
}
ONLY_TORCH = {"models"}  # outside the package these use torch and the standard library
TORCH_AT_IMPORT = {
    "models",
    "ops",
    "groups",
    "crew",
    "load",
    "evaluation",
    "train",
    "compress",
    "export",
    "serve",
    "vision",
    "measure",
    "measure_live",
    "runnable",
    "run",
    "prove",
}
LIGHT = {"burnish": ("pydantic", "numpy", "torch"), "burnish.cli": ("pydantic", "numpy", "torch")}


def check(root: Path) -> tuple[str, list[str]]:
    """Number of modules and imports looked at, and each import that the rule refuses."""
    files = sources(root, ("src",))
    modules = {module_name(f): f for f in files}
    level = {name: k for k, layer in enumerate(LAYERS) for name in layer}
    graph: dict[str, set[str]] = {}
    problems: list[str] = []
    for module, source in modules.items():
        unit = unit_of(module)
        if unit not in level:
            problems.append(f"{source.path}: {unit!r} has no layer; give it one in scripts/rules/imports.py")
            continue
        inside = list(package_imports(source.tree, modules))
        graph[module] = {target for target, _ in inside} - {module}
        for target, line in inside:
            if (reason := refused(unit, unit_of(target), level)) is not None:
                problems.append(f"{source.path}:{line}: {unit} imports {target}, {reason}")
        problems += [f"{source.path}:{line}: {unit} imports {name}" for name, line in foreign(unit, source.tree)]
    problems += [f"mutual imports: {' -> '.join(loop)}" for loop in loops(graph)]
    problems += torch_loaded(
        root, [m for m in modules if unit_of(m).split(".")[0] not in TORCH_AT_IMPORT and m != "burnish.__main__"]
    )
    return f"{len(modules)} modules, {sum(map(len, graph.values()))} imports inside the package", problems


def module_name(source: Source) -> str:
    """`burnish.data.text` for src/burnish/data/text.py; a package goes by its folder's name."""
    parts = source.path.removeprefix("src/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """The file or folder of the package that a module belongs to, or the file itself where it stands apart."""
    parts = module.split(".")
    apart = ".".join(parts[1:3])
    return apart if apart in APART else parts[1] if len(parts) > 1 else "__init__"


def walk_run(node: ast.AST) -> Iterator[ast.stmt]:
    """Import statements that run: those under `if TYPE_CHECKING` only name types and are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from walk_run(child)


def imported(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(module, names taken from it, line) of every import that runs."""
    for node in walk_run(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, (), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), tuple(alias.name for alias in node.names), node.lineno


def package_imports(tree: ast.Module, modules: dict[str, Source]) -> Iterator[tuple[str, int]]:
    """Modules of the package that a file imports, as whole modules or names from them."""
    for module, names, line in imported(tree):
        if module.split(".")[0] == "burnish":
            submodules = [f"{module}.{name}" for name in names if f"{module}.{name}" in modules]
            for target in submodules or [module]:
                yield target, line


def foreign(unit: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Imports from outside that a unit may not have: relative ones, and in plain models anything but torch."""
    for module, _, line in imported(tree):
        top = module.split(".")[0]
        if module.startswith("."):
            yield f"{module or '.'} relatively; write the whole name", line
        elif unit in ONLY_TORCH and top not in {"burnish", "torch", *sys.stdlib_module_names}:
            yield f"{top}; only torch is allowed there", line


def refused(unit: str, target: str, level: dict[str, int]) -> str | None:
    """Why `unit` may not import `target`, None when it may."""
    if target in (unit, "__init__") or target not in level:
        return None
    if unit in CLOSED and target not in CLOSED[unit]:
        return f"but may import only {', '.join(sorted(CLOSED[unit]))}"
    return "which stands above it" if level[target] > level[unit] else None


def loops(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """One loop for each module that reaches itself, each set of modules once."""
    seen: set[frozenset[str]] = set()
    for start in graph:
        stack, parents = [start], {start: ""}
        while stack:
            node = stack.pop()
            if start in graph.get(node, set()):
                loop = [start]
                while node != start:
                    loop.insert(1, node)
                    node = parents[node]
                if frozenset(loop) not in seen:
                    seen.add(frozenset(loop))
                    yield [*loop, start]
                break
            for following in graph.get(node, set()) - parents.keys():
                parents[following] = node
                stack.append(following)


def torch_loaded(root: Path, modules: list[str]) -> list[str]:
    """The first module that loads what it must not, found by importing them in a fresh interpreter."""
    problems = [p for module, heavy in LIGHT.items() if module in modules for p in loaded(root, [module], heavy)]
    return problems + loaded(root, modules, ("torch",))


def loaded(root: Path, modules: list[str], heavy: tuple[str, ...]) -> list[str]:
    """Import `modules` one after another and name the first that brings in one of the `heavy` packages."""
    code = f"""
import importlib, sys
for module in {modules!r}:
    importlib.import_module(module)
    if found := [h for h in {heavy!r} if h in sys.modules]:
        print(module, "loads", ", ".join(found))
        break
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PYTHONPATH": str(root / "src")}, capture_output=True, text=True
    )
    if ran.returncode:
        return [f"the torch-free modules cannot be imported: {ran.stderr.strip().splitlines()[-1]}"]
    return [ran.stdout.strip()] if ran.stdout.strip() else []
