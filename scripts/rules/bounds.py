"""Bounds of size: lines of a file, lines of a function, parameters of a function, and a first line with the idea."""

from __future__ import annotations

import ast
from pathlib import Path

from tree import sources

FILE_LINES, FUNCTION_LINES, PARAMETERS = 300, 60, 8
EXCEPTIONS: dict[str, str] = {}  # "path" or "path:function" -> why it may be larger


def check(root: Path) -> tuple[str, list[str]]:
    """The longest file and function there are, and what is over a bound."""
    problems: list[str] = []
    longest_file = longest_function = most_parameters = 0
    for source in sources(root):
        lines = len(source.lines)
        if source.path not in EXCEPTIONS:
            longest_file = max(longest_file, lines)
            if lines > FILE_LINES:
                problems.append(f"{source.path}: {lines} lines, at most {FILE_LINES}")
        if source.lines and not ast.get_docstring(source.tree):
            problems.append(f"{source.path}: the first line states the idea of the file, as a docstring")
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if f"{source.path}:{node.name}" in EXCEPTIONS:
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            count = parameters(node)
            longest_function, most_parameters = max(longest_function, length), max(most_parameters, count)
            where = f"{source.path}:{node.lineno} {node.name}"
            if length > FUNCTION_LINES:
                problems.append(f"{where}: {length} lines, at most {FUNCTION_LINES}")
            if count > PARAMETERS:
                problems.append(f"{where}: {count} parameters, at most {PARAMETERS}; a config record holds more")
    figure = f"longest file {longest_file}, longest function {longest_function}, most parameters {most_parameters}"
    return figure + (f", {len(EXCEPTIONS)} exceptions" if EXCEPTIONS else ""), problems


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Named parameters, without self and cls."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (1 if names[:1] in (["self"], ["cls"]) else 0)
