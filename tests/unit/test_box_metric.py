"""Average precision: values worked out by hand, crowds, nothing found, classes that are not there; and boxes held against truth."""

import numpy as np
import pytest

from burnish.vision import box_metric
from burnish.vision.box_metric import score
from burnish.vision.box_overlay import drawn_png, matched, overlaps
from burnish.vision.boxes import Found

NAMES = ("cat", "dog")


class True_:  # noqa: N801 - a picture's truth
    def __init__(self, boxes, labels, crowd=None):
        self.boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
        self.labels = np.asarray(labels, np.int64)
        self.crowd = np.asarray(crowd if crowd is not None else [False] * len(labels), np.bool_)


def found(boxes, scores, labels) -> Found:
    return Found(
        np.asarray(boxes, np.float32).reshape(-1, 4), np.asarray(scores, np.float32), np.asarray(labels, np.int64)
    )


TWO = [True_([[0, 0, 10, 10], [20, 20, 40, 30]], [0, 0]), True_([[5, 5, 15, 15]], [1])]


def test_what_is_right_scores_one(capsys):
    own = score([found(one.boxes, [0.9] * len(one.labels), one.labels) for one in TWO], TWO, NAMES)
    assert own.each == pytest.approx({"cat": 1.0, "dog": 1.0})
    assert own.named == pytest.approx({"map": 1.0, "map50": 1.0})
    assert list(own.shown) == ["mAP", "mAP50"]
    assert capsys.readouterr().out == ""


def test_one_of_two_found_is_half_and_overlaps_count():
    """A cat found whole, a cat missed: precision 1 up to recall 0.5, 51 of 101 points. The dog overlaps by 0.6: right at 0.5,
    0.55 and 0.6, wrong beyond."""
    seen = [found([[0, 0, 10, 10]], [0.5], [0]), found([[5, 5, 15, 11.01]], [0.5], [1])]
    own = score(seen, TWO, NAMES)
    assert own.each["cat"] == pytest.approx(51 / 101)
    assert own.each["dog"] == pytest.approx(0.3)
    assert own.map50 == pytest.approx((51 / 101 + 1) / 2)
    assert own.map == pytest.approx((51 / 101 + 0.3) / 2)


def test_a_better_scored_mistake_costs_and_a_worse_one_does_not():
    def cat(mistake: float) -> float:
        seen = [found([[0, 0, 10, 10], [20, 20, 40, 30], [60, 60, 70, 70]], [0.6, 0.6, mistake], [0, 0, 0])]
        return score(seen, TWO[:1], NAMES).each["cat"]

    assert cat(0.1) == pytest.approx(1.0)
    assert cat(0.9) == pytest.approx(2 / 3)


def test_nothing_found_and_nothing_there():
    nothing = found([], [], [])
    assert score([nothing, nothing], TWO, NAMES).map == 0.0
    own = score([nothing, found([[1, 1, 2, 2]], [0.5], [1])], [TWO[0], True_([], [])], NAMES)
    assert own.each == {"cat": 0.0}
    assert score([found([[1, 1, 2, 2]], [0.5], [1])], [True_([], [])], NAMES).map == 0.0


def test_boxes_in_a_crowd_are_no_mistakes():
    crowd = [True_([[0, 0, 10, 10], [50, 0, 100, 50]], [0, 0], [False, True])]
    seen = [found([[50, 0, 60, 10], [70, 0, 80, 10], [0, 0, 10, 10]], [0.9, 0.8, 0.5], [0, 0, 0])]
    assert score(seen, crowd, NAMES).each == pytest.approx({"cat": 1.0})


def test_overlaps_and_matches():
    both = overlaps(np.array([[0, 0, 10, 10]], np.float32), np.array([[5, 0, 15, 10], [20, 20, 30, 30]], np.float32))
    np.testing.assert_allclose(both, [[1 / 3, 0.0]])
    seen = found([[0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 40, 30]], [0.5, 0.9, 0.8], [0, 0, 1])
    hit, known = matched(seen, TWO[0].boxes, TWO[0].labels)
    assert hit.tolist() == [False, True, False]
    assert known.tolist() == [True, False]
    picture = np.zeros((1, 30, 40), np.uint8)
    assert drawn_png(picture, seen, NAMES, TWO[0].boxes, TWO[0].labels).startswith(b"\x89PNG")


@pytest.mark.sabotage
def test_all_overlaps_judged_as_one_is_noticed(monkeypatch):
    test_one_of_two_found_is_half_and_overlaps_count()
    monkeypatch.setattr(box_metric, "AT_HALF", 5)
    with pytest.raises(AssertionError):
        test_one_of_two_found_is_half_and_overlaps_count()
