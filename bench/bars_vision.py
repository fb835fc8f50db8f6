"""Bars of vision."""

from __future__ import annotations

from bar import rows

VISION = (
    *rows(
        "vision",
        "brain_extraction",
        "bench/brain_extraction.py",
        ("burnish run brain-extraction", "seconds", None, 600, "s"),
        ("... Dice on the unseen head", "dice", 0.90, None, ""),
        ("... INT8: Dice lost", "trained.int8.drop", None, 0.003, ""),
        ("... INT8: bytes of the file, share of float32", "trained.int8.bytes", None, 1 / 3, "x"),
        ("... INT8 of the pruned network: Dice lost", "pruned.int8.drop", None, 0.003, ""),
        ("... and bytes, share of its own float32 (the graph is a fifth of it)", "pruned.int8.bytes", None, None, "x"),
        ("... INT8: times as fast as float32, whole network", "trained.int8.speed", None, None, "x"),
        ("... half pruned and trained on: Dice below the control of the same budget", "pruned.drop", None, 0.01, ""),
    ),
    *rows(
        "vision",
        "brain_regions",
        "bench/brain_regions.py",
        ("brain-regions: pretrained above scratch, the least of 3 seeds", "least_gain", 0, None, "Dice"),
        ("... mean Dice from brain-extraction's weights", "pretrained_mean", None, None, ""),
        ("... mean Dice from scratch", "scratch_mean", None, None, ""),
    ),
    *rows(
        "vision",
        "segmentation_vs_monai",
        "bench/segmentation_vs_monai.py",
        ("training against MONAI's tutorial loop: Dice above", "dice.above", -0.005, None, ""),
        ("... images/s", "speed.ratio", 1.1, None, "x"),
        ("... peak memory", "memory.ratio", None, 1.0, "x"),
    ),
    *rows(
        "vision",
        "vision_networks",
        "bench/vision_networks.py",
        ("every network offered: the law at another size differs for", "law_different", 0, 0, "networks"),
        ("... ONNX: largest difference of scores from torch", "onnx_difference", None, 1e-4, ""),
        ("... cannot be pruned", "prune_refused", 0, 0, "networks"),
        ("... stay in float by the verdict of their pixels", "int8_refused", None, None, "networks"),
        ("... faster in 8 bits than in float here", "int8_faster", None, None, "networks"),
        ("ONNX exporter that follows a run", "exporter_run_seconds", None, None, "s"),
        ("... that reads the program", "exporter_program_seconds", None, None, "s"),
    ),
)
