"""What verbs that open an engine ask: every value that cannot be is refused by name, before anything is loaded."""

from __future__ import annotations

import pytest

from burnish.cli_engine import EngineOptions, bytes_of, check_engine, engine_settings
from burnish.errors import UserError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv": "int4"}, "--kv int4: use float or int8"),
        ({"head": "q4"}, "--head q4: use auto or float32 or int8 or int4"),
        ({"weights": "int4"}, "--weights int4: use float or q4"),
        ({"runner": "onnx"}, "--runner onnx: use auto or torch or onnxruntime"),
        ({"memory": "512"}, "--memory 512: a size is a number and a unit, such as 512MiB or 4GiB"),
        ({"calibrate": ["a.txt"]}, "--calibrate: nothing is fitted to a text but --kv int8 and --head int4"),
        ({"calibrate": ["a.txt"], "weights": "q4", "head": "int8"}, "--calibrate: nothing is fitted"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(UserError) as raised:
        check_engine(EngineOptions(**given))
    assert str(raised.value).startswith(said)


def test_options_reach_the_settings():
    options = EngineOptions(memory="3MiB", weights="q4", head="int4", kv="int8", calibrate=["a.txt", "b"], exact=True)
    assert check_engine(options) == bytes_of("3MiB") == 3 * 2**20
    made = engine_settings(options, rows=3, draft="ngram")
    assert (made.memory, made.weights, made.head, made.kv) == (3 * 2**20, "q4", "int4", "int8")
    assert (made.calibrate, made.exact, made.rows, made.draft) == (("a.txt", "b"), True, 3, "ngram")
