"""Bars of 8-bit products."""

from __future__ import annotations

from bar import Bar, rows

FLOORS = {
    "current": (27.5, 23.5, 22.0),
    "delayed": (27.5, 23.5, 22.0),
    "block": (27.5, 27.0, 26.5),
}
KINDS = ("forward", "input_gradient", "weight_gradient")

FP8: tuple[Bar, ...] = (
    *rows(
        "fp8",
        "fp8",
        "bench/fp8.py",
        *(
            (
                f"FP8, {scaling}: gap to bf16's final loss over the spread of seeds",
                f"loss_ratio.{scaling}",
                None,
                2,
                "x",
            )
            for scaling in FLOORS
        ),
        *(
            (f"FP8, {scaling}: {kind.replace('_', ' ')}", f"decibels.{scaling}.{kind}", floor, None, "dB")
            for scaling, floors in FLOORS.items()
            for kind, floor in zip(KINDS, floors, strict=True)
        ),
        ("two ranks of a layer against one process: losses", "apart.tp2", None, 2e-4, "x"),
        ("recomputed layers against kept ones: losses", "apart.recomputed", 0, 0, "x"),
        ("kinds of modules listed in a wrong format", "listed_wrong", 0, 0, ""),
        ("the law, parity and faults: tests failed", "tests_failed", 0, 0, ""),
        ("breaks that the tests missed", "breaks_missed", 0, 0, ""),
    ),
)
