"""Bars of detection."""

from __future__ import annotations

from bar import rows

DETECTION = (
    *rows(
        "detection",
        "digits_detector",
        "bench/digits_detector.py",
        ("burnish run digits-detector", "seconds", None, 360, "s"),
        ("... mAP50 on digits never seen", "trained.map50", 0.93, None, ""),
        ("... mAP", "trained.map", None, None, ""),
        ("... 40 % of channels cut, not trained on: mAP50 lost", "cut.drop50", None, None, ""),
        ("... trained on: mAP50 below the control of the same budget", "pruned.drop50", None, 0.03, ""),
        ("... INT8: mAP lost", "trained.int8.drop", None, 0.01, ""),
        ("... INT8: bytes of the file, share of float32", "trained.int8.bytes", None, 1 / 3, "x"),
        ("... INT8 of the pruned network: mAP lost", "pruned.int8.drop", None, 0.01, ""),
        ("... and bytes, share of its own float32", "pruned.int8.bytes", None, 1 / 3, "x"),
        ("... INT8: times as fast as float32, whole network", "trained.int8.speed", None, None, "x"),
    ),
    *rows(
        "detection",
        "tree_crowns",
        "bench/tree_crowns.py",
        ("tree-crowns: mAP50 from ImageNet's weights", "trained.map50", 0.36, None, ""),
        ("... above scratch with the same steps", "gain50", 0, None, "mAP50"),
        ("... INT8: mAP lost", "trained.int8.drop", None, 0.02, ""),
        ("... INT8: bytes of the file, share of float32", "trained.int8.bytes", None, None, "x"),
        ("... the run from ImageNet's weights", "seconds", None, None, "s"),
    ),
    *rows(
        "detection",
        "detector_onnx",
        "bench/detector_onnx.py",
        ("onnxruntime against torch, two batches, three sizes: sides of boxes apart", "box", None, 1e-3, "px"),
        ("... scores apart", "score", None, 1e-3, ""),
        ("... boxes compared", "boxes", 1, None, ""),
    ),
    *rows(
        "detection",
        "annotations",
        "bench/annotations.py",
        ("boxes of photos through any two of four forms and back: sides apart", "apart", None, 1e-6, "px"),
        ("... chains of forms", "chains", 12, None, ""),
        ("... boxes", "boxes", None, None, ""),
        ("broken annotations named in one line", "broken.named", 20, None, ""),
        ("... not named", "broken.wrong", 0, 0, ""),
    ),
)
