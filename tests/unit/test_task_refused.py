"""Files of labelled examples that cannot be used: one line naming file and line."""

from __future__ import annotations

import json

import pytest
from test_task import ENCODER, QUESTIONS, decoder, encoder_folder, jsonl, judged  # noqa: F401 - a fixture among them

from burnish.encoders.config import EncoderConfig
from burnish.errors import UserError

CHOICES = {"prompt": "the", "choices": ["a", "b"], "answer": 0}
HEADS = {
    "bare": {},
    "sequence": {"head": "sequence", "labels": ("no", "yes")},
    "tokens": {"head": "tokens", "labels": ("no", "yes"), "pooler": False},
}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"answer": 2}, "answer '2' is no choice, nor the number of one: 0 to 1"),
        ({"answer": "c"}, "answer 'c'"),
        ({"answer": True}, "answer 'True'"),
        ({"answer": None}, "answer 'None'"),
        ({"choices": ["a"]}, "two or more"),
        ({"choices": "a, b"}, "two or more"),
        ({"choices": ["a", 1]}, "two or more"),
        ({"choices": ["a", "a"]}, "the choice 'a' stands twice"),
        ({"choices": ["a", " "]}, "an empty choice"),
        ({"prompt": 3}, "'prompt' must be a string, found a number"),
        ({"prompt": "x " * 99}, "the model 64 positions"),
    ],
)
def test_a_fault_of_a_question_names_its_line(second, said, decoder, tmp_path):  # noqa: F811
    path = jsonl(tmp_path, [CHOICES, CHOICES | second])
    with pytest.raises(UserError, match=said) as error:
        judged(decoder, path)
    assert str(error.value).startswith(f"{path}, line 2: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no row"),
        ("\n\n", "holds no row"),
        ('{"prompt": "a"\n', "line 1: not valid JSON"),
        ("[1]\n", "line 1: expected a JSON object, found an array"),
        (
            json.dumps(CHOICES) + '\n{"prompt": "a", "answer": 1}\n',
            "line 2: no column 'choices', which the first row has",
        ),
        (
            '{"text": "a", "label": "b"}\n',
            "has columns text, label; .* is a decoder, judged by prompt, choices, answer or",
        ),
        ('{"prompt": "a", "answer": 1}\n', "line 1: 'answer' must be a string"),
        ('{"prompt": "\\ud800", "answer": "a"}\n', "line 1: holds half a surrogate pair"),
        ('{"prompt": "' + "x" * 400 + '", "answer": "a"}\n', "line 1: a prompt of"),
    ],
)
def test_a_file_that_is_none_is_refused(content, said, decoder, tmp_path):  # noqa: F811
    path = tmp_path / "task.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=said) as error:
        judged(decoder, path, new_tokens=8)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prompt,answer\na\n", "line 2: 1 cells, the first line names 2 columns"),
        ("prompt,prompt\na,b\n", "line 1: the column 'prompt' stands twice"),
        ('prompt,answer\n"a,b\n', "not CSV"),
        ("prompt,answer\n", "holds no row"),
        ("prompt,answer\n\0,a\n", "NUL"),
    ],
)
def test_a_csv_file_that_is_none_is_refused(content, said, decoder, tmp_path):  # noqa: F811
    path = tmp_path / "task.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=said) as error:
        judged(decoder, path)
    assert str(error.value).startswith(str(path))


def test_a_file_of_another_kind_is_refused(decoder, tmp_path):  # noqa: F811
    for name in ("task.txt", "missing.jsonl"):
        with pytest.raises(UserError, match=name):
            judged(decoder, tmp_path / name)


@pytest.mark.parametrize(
    ("head", "rows", "said"),
    [
        ("sequence", [{"text": "a", "label": "perhaps"}], "line 1: label 'perhaps' is no class of this model"),
        ("sequence", [{"text": "a", "label": 2}], "line 1: label '2' is no class"),
        ("sequence", [{"text": "a", "label": None}], "line 1: label None"),
        (
            "sequence",
            [{"text": "a", "score": 1}],
            "is an encoder that classifies texts, judged by text_a, text_b, label",
        ),
        ("tokens", [{"text": "a", "label": "no"}], "classifies tokens"),
        ("bare", [{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], "every label is 'x'"),
        ("bare", [{"text": "a", "label": "x"}, {"text": "b", "label": []}], "line 2: label"),
        ("bare", [{"text_a": "a", "text_b": "b", "score": "high"}], "line 1: 'score' must be a number, found 'high'"),
        ("bare", [{"text_a": "a", "text_b": "b", "score": float("nan")}], "line 1: 'score'"),
        ("bare", [{"text_a": "a", "text_b": "b", "score": 1}] * 3, "every score is the same"),
        ("bare", QUESTIONS, "is an encoder without a head, judged by"),
    ],
)
def test_a_fault_of_examples_for_an_encoder_is_refused(head, rows, said, tmp_path):
    config = EncoderConfig(**ENCODER.model_dump() | HEADS[head])
    with pytest.raises(UserError, match=said) as error:
        judged(encoder_folder(tmp_path, config), jsonl(tmp_path, rows))
    assert "\n" not in str(error.value)
