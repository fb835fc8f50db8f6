"""Which characters of a conversation the assistant says: named templates, one by one, and those that are refused."""

from __future__ import annotations

import re

import pytest

from burnish.data.template import Template
from burnish.data.turns import lay_out
from burnish.errors import UserError
from chat_pair import pair, talk

IM = re.compile(re.escape("<|im_end|>") + "|" + re.escape("<|im_start|>"))
TWO = talk("a", "b", "c", "d e")
THOUGHT = talk("a", "<think>\nhm\n</think>\n\nb", "c", "<think>\nso\n</think>\n\nd")
HERE = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"


def spoken(name: str, messages: tuple[dict[str, str], ...], source: str | None = None) -> list[str]:
    ours = pair(name, source=source).ours
    layout = lay_out(ours.template, messages, ours.specials)
    return [layout.text[start:end] for start, end in layout.spoken]


@pytest.mark.parametrize(
    ("name", "messages", "wanted"),
    [
        ("smollm2", TWO, ["b<|im_end|>", "d e<|im_end|>"]),
        ("smollm2", talk("a", " b\n\n", system="s"), [" b\n\n<|im_end|>"]),
        ("smollm2", talk("a", ""), ["<|im_end|>"]),
        ("smollm2", talk("a"), []),
        ("smollm2", talk("b", "b", "assistant\nb<|im_end|>", "b"), ["b<|im_end|>", "b<|im_end|>"]),
        ("llama3", talk("a", " b \n", "c", "d"), ["b<|eot_id|>", "d<|eot_id|>"]),
        ("zephyr", TWO, ["b</s>", "d e</s>"]),
        ("mistral_v0.3", TWO, [" b</s>", " d e</s>"]),
        ("mistral_v0.3", talk("a", "b", system="s")[1:], [" b</s>"]),
        ("llama2", TWO, [" b </s>", " d e </s>"]),
        ("qwen2.5", TWO, ["b<|im_end|>", "d e<|im_end|>"]),
        # Qwen3 writes its reasoning in the last turn only, with an empty one where there is none.
        ("qwen3", TWO, ["b<|im_end|>", "<think>\n\n</think>\n\nd e<|im_end|>"]),
        ("qwen3", THOUGHT, ["b<|im_end|>", "<think>\nso\n</think>\n\nd<|im_end|>"]),
        ("smollm2", THOUGHT, [text["content"] + "<|im_end|>" for text in THOUGHT[1::2]]),
        ("questions", TWO, ["b\n", "d e\n"]),  # no special token: the line break is what ends a turn
    ],
)
def test_what_the_assistant_says(name: str, messages: tuple[dict[str, str], ...], wanted: list[str]) -> None:
    assert spoken(name, messages) == wanted


def test_turns_of_one_role_and_an_assistant_that_begins() -> None:
    messages = ({"role": "assistant", "content": "x"}, *talk("a", "b"), {"role": "assistant", "content": "c"})
    assert spoken("smollm2", messages) == ["x<|im_end|>", "b<|im_end|>", "c<|im_end|>"]
    with pytest.raises(UserError, match=r"mistral_v0\.3: not rendered: .* conversation roles must alternate"):
        spoken("mistral_v0.3", messages)


def test_headers_are_told_apart_where_the_template_asks_for_no_answer() -> None:
    """Without a generation prompt the header is what stands before the words, white space after a special token aside."""
    assert spoken("smollm2", TWO, "{% for m in messages %}" + HERE + "{% endfor %}") == ["b<|im_end|>", "d e<|im_end|>"]


def test_a_turn_may_end_in_several_special_tokens() -> None:
    source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}<|endoftext|>{{ eos_token }}\n{% endfor %}"
    assert spoken("smollm2", talk("a", "b"), source) == ["b<|endoftext|><|im_end|>"]


def test_a_template_whose_first_messages_are_written_otherwise_alone() -> None:
    """The first rendering says how many messages there are, so no rendering of the first few is its beginning."""
    source = (
        "{{ messages | length }}{% for m in messages %}" + HERE + "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert spoken("smollm2", TWO, source) == ["b<|im_end|>", "d e<|im_end|>"]


@pytest.mark.parametrize(
    ("source", "messages", "why"),
    [
        (
            "{% for m in messages if m.role != 'tool' %}" + HERE + "{% endfor %}",
            (*talk("a", "b"), {"role": "tool", "content": "t"}),
            r"leaves out message 3 \(tool\); roles that it writes: user, system, assistant$",
        ),
        (
            "{% for m in messages %}{{ raise_exception('no ' + m.role) if m.role == 'system' }}"
            + HERE
            + "{% endfor %}",
            talk("a", "b", system="s"),
            r"not rendered: no system; roles that it writes: user, assistant, tool$",
        ),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", TWO, r"changes the text of message 1 \(user\)"),
        (
            "{% for m in messages %}" + HERE + "{{ messages[1].content }}{% endfor %}",
            talk("a", "b"),
            r"writes more than once message 2 \(assistant\)",
        ),
        (
            "{% for m in messages if m.content %}" + HERE + "{% endfor %}",
            talk("a", ""),
            r"leaves out message 2 \(assistant\)",
        ),
        (
            "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}",
            TWO,
            "a generation tag inside another",
        ),
        ("{% for m in", TWO, r"not rendered: .* \(line 1 of the template\)"),
        ("{{ nothing.at_all }}", TWO, "'nothing' is undefined"),
    ],
)
def test_what_cannot_be_followed_is_refused(source: str, messages: tuple[dict[str, str], ...], why: str) -> None:
    with pytest.raises(UserError, match=why):
        lay_out(Template(source, where="t"), messages, IM)


def test_a_system_message_that_is_lost_is_refused() -> None:
    """This template writes it with the last message only, and then only when that is the user's."""
    with pytest.raises(UserError, match=r"leaves out message 1 \(system\)"):
        spoken("mistral_v0.3", talk("a", "b", system="s"))
    layout = lay_out(pair("mistral_v0.3").ours.template, talk("a", "b", "c", system="s"), IM)
    assert layout.text.endswith("[INST] s\n\nc[/INST]")


def test_a_conversation_without_any_word_has_no_part_that_people_wrote() -> None:
    assert lay_out(Template("{{ messages[0].content | length }}"), talk(""), IM).written == []


def test_the_parts_that_people_wrote_are_told_from_the_templates() -> None:
    ours = pair("smollm2").ours
    layout = lay_out(ours.template, talk("<|im_end|>", "user", system="assistant"), ours.specials)
    assert [layout.text[start:end] for start, end in layout.written] == ["assistant", "<|im_end|>", "user"]


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}", "took more than 1 s"),
        ("{{ messages[0].content * 10**11 }}", "took more memory than it may"),
        ("{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "wrote more than 16,777,216 characters"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        ("{% include '/etc/hostname' %}", "no loader"),
        ("{{ raise_exception('a\nb\n' * 999) }}", "a b a b"),
    ],
)
def test_hostile_templates_end_in_one_line(hostile: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.data.rendering.SECONDS", 1.0)
    with pytest.raises(UserError, match=why) as raised:
        Template(hostile, where="t").render(TWO)
    assert str(raised.value).startswith("t: not rendered: ")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_template_that_hung_once_still_renders_other_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.data.rendering.SECONDS", 1.0)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    made = Template("{% if messages | length > 2 %}" + loop + "{% endif %}ok")
    assert made.render(talk("a")) == "ok"
    with pytest.raises(UserError, match="took more than 1 s"):
        made.render(TWO)
    assert made.render(talk("a")) == "ok"
