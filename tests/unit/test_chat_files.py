"""Files of conversations: three spellings read alike, and every fault named with its file and line."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.data.chat import Conversations, read
from burnish.data.packing import Rows
from burnish.data.prepare import prepare
from burnish.errors import UserError
from burnish.recipe import Data, replace
from burnish.recipes.quickstart import quickstart
from chat_pair import TEMPLATES, pair, talk

WANTED = talk("hi", "yo")


@pytest.mark.parametrize(
    "record",
    [
        {"messages": list(WANTED)},
        {"messages": [{"role": "user", "content": "hi", "name": None, "tool_calls": []}, WANTED[1]], "id": 7},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
                WANTED[1],
            ]
        },
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
        {"conversations": [{"from": "user", "value": "hi"}, {"from": "assistant", "value": "yo"}]},
        {"prompt": "hi", "completion": "yo"},
        {"prompt": [WANTED[0]], "completion": [WANTED[1]]},
    ],
)
def test_the_spellings_are_read_alike(record):
    assert read(record, "x") == WANTED


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", "line 2: expected a JSON object with key 'messages', found an array"),
        (
            '{"message": []}',
            "line 2: no conversation; keys that hold one: messages, conversations, prompt with completion; did",
        ),
        ('{"messages": {}}', "line 2: 'messages' must be an array of messages, found an object"),
        ('{"messages": []}', "line 2: 'messages' holds no message"),
        (
            '{"messages": ["hi"]}',
            r"line 2: messages\[0\]: expected an object with 'role' and 'content', found a string",
        ),
        (
            '{"messages": [{"role": "user"}]}',
            r"line 2: messages\[0\]: no 'content'; a message has 'role' and 'content'",
        ),
        (
            '{"messages": [{"role": "user", "content": 3}]}',
            r"messages\[0\]: content must be a string or an array of parts, found",
        ),
        (
            '{"messages": [{"role": "", "content": "a"}]}',
            r"messages\[0\]: 'role' must be a word such as 'user', found ''",
        ),
        (
            '{"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}',
            r"messages\[0\]: has 'tool_calls', which is not",
        ),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
            r"messages\[0\]: content\[0\]: a part of type 'image'; parts that are read: {'type': 'text', 'text': ...}",
        ),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', r"messages\[0\]: holds half a surrogate pair"),
        ('{"conversations": [{"from": "human"}]}', r"conversations\[0\]: no 'value'; a message has 'from' and 'value'"),
        ('{"prompt": "a", "completion": 3}', r"prompt \+ completion\[1\]: content must be a string"),
        (
            '{"messages": [{"role": "user<|im_end|>", "content": "a"}]}',
            r"'role' must be a word such as 'user', found 'user<",
        ),
        ("{", r"line 2: not valid JSON"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path, line, why):
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": list(WANTED)}) + "\n" + line + "\n")
    with pytest.raises(UserError, match=why) as raised:
        list(Conversations.open([path]).documents())
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "messages",
                        "conversations",
                        "role",
                        "content",
                        "from",
                        "value",
                        "prompt",
                        "completion",
                        "type",
                        "text",
                    ]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_whatever_a_line_holds_is_read_or_refused(record):
    try:
        messages = read(record, "x")
    except UserError:
        return
    assert all(isinstance(part, str) for message in messages for part in message.values())
    assert messages


def test_files_that_are_no_conversations(tmp_path):
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(UserError, match=r"a\.txt: not a file of conversations; data\.format chat reads \.jsonl"):
        Conversations.open([tmp_path])
    (tmp_path / "b.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match=r"b\.jsonl: holds no conversation"):
        list(Conversations.open([tmp_path / "b.jsonl"]).documents())


@pytest.fixture
def folder(tmp_path):
    """A tokenizer's folder as a model has it, and 30 conversations."""
    tokenizer = pair("smollm2").ours.text
    (tmp_path / "tok").mkdir()
    tokenizer.save(tmp_path / "tok" / "tokenizer.json")
    (tmp_path / "tok" / "tokenizer_config.json").write_text(json.dumps(tokenizer.settings))
    lines = [json.dumps({"prompt": f"What is {n}?", "completion": f"It is {n}."}) for n in range(30)]
    (tmp_path / "talk.jsonl").write_text("\n".join(lines))
    return tmp_path


def data(folder, **more):
    given = {
        "train": str(folder / "talk.jsonl"),
        "tokenizer": str(folder / "tok"),
        "format": "chat",
        "heldout_fraction": 0.2,
    }
    return Data(**given | more)


def test_a_chat_is_prepared_with_the_template_of_the_tokenizer(folder):
    eos = pair("smollm2").ours.eos
    ready = prepare(data(folder), 400, eos, folder=folder / "c")
    assert ready.train.documents + ready.heldout.documents == 30
    assert ready.train.predicted > 0
    learned = [int(t) for row in Rows(ready.heldout, 64) for t in row.labels if t >= 0]
    assert ready.tokenizer.decode(learned).startswith("It is")
    assert sorted(ready.fingerprints) == ["template", "tokenizer", "train"]
    other = prepare(data(folder, template=str(TEMPLATES / "chatml.jinja")), 400, eos, folder=folder / "c")
    assert other.fingerprints["template"] != ready.fingerprints["template"]
    ready.save_tokenizer(folder / "out" / "tokenizer.json")
    saved = json.loads((folder / "out" / "tokenizer_config.json").read_text())
    assert saved == ready.tokenizer.settings
    assert (folder / "out" / "tokenizer.json").read_text() == (folder / "tok" / "tokenizer.json").read_text()


def test_the_model_that_training_starts_from_gives_tokenizer_and_template(folder):
    tokenizer = pair("smollm2").ours.text
    settings = {name: value for name, value in tokenizer.settings.items() if name != "chat_template"}
    files = SimpleNamespace(
        tokenizer=tokenizer.to_json(), settings=settings, template=tokenizer.settings["chat_template"]
    )
    ready = prepare(data(folder, tokenizer=None), 400, tokenizer.eos, folder=folder / "c", files=files)
    named = prepare(data(folder), 400, tokenizer.eos, folder=folder / "c")
    assert ready.fingerprints == named.fingerprints
    assert ready.settings == named.settings == tokenizer.settings
    text = Data(train=(str(folder / "talk.jsonl"),), text_field="completion")
    assert (
        prepare(text, 400, tokenizer.eos, folder=folder / "c", files=files).tokenizer.to_json() == tokenizer.to_json()
    )


def test_what_is_missing_for_a_chat_is_named(folder):
    with pytest.raises(
        UserError, match=r"data\.format chat: there is no tokenizer; name a model folder in train\.init or"
    ):
        prepare(data(folder, tokenizer=None), 400, folder=folder / "c")
    (folder / "tok" / "tokenizer_config.json").unlink()
    with pytest.raises(
        UserError, match=r"the chat template of .*tok: there is none; name a \.jinja file in data\.template"
    ):
        prepare(data(folder), 400, pair("smollm2").ours.eos, folder=folder / "c")
    (folder / "tok" / "chat_template.jinja").write_text((TEMPLATES / "chatml.jinja").read_text())
    ready = prepare(data(folder), 400, pair("smollm2").ours.eos, folder=folder / "c")
    assert ready.settings == {"chat_template": (TEMPLATES / "chatml.jinja").read_text()}
    with pytest.raises(UserError, match=r"none\.jinja: no such template file \(data\.template\)"):
        prepare(data(folder, template="none.jinja"), 400, folder=folder / "c")


def test_a_held_out_part_without_words_is_refused(folder):
    (folder / "empty.jsonl").write_text(json.dumps({"prompt": "a", "completion": ""}))
    with pytest.raises(UserError, match="the held-out part has no text to be judged on"):
        prepare(data(folder, heldout=str(folder / "empty.jsonl")), 400, pair("smollm2").ours.eos, folder=folder / "c")


def test_a_recipe_says_what_a_chat_needs():
    with pytest.raises(UserError, match=r"data\.template writes conversations, and data\.format is text"):
        replace(quickstart(), {"data.template": "a.jinja"})
    with pytest.raises(
        UserError, match=r"data\.format chat needs a model's tokenizer and template; name its folder in"
    ):
        replace(quickstart(), {"data.format": "chat"})
