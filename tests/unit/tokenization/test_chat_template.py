from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crossdock.tokenization import ChatTemplate, ChatTemplateError
from crossdock.tokenization import chat_template as module

HELLO = [{"role": "user", "content": "hello"}]


def load(directory: Path, config: dict[str, Any]) -> ChatTemplate | None:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTemplate.load(directory)


def test_renders_messages_and_special_tokens(tmp_path: Path) -> None:
    template = load(
        tmp_path,
        {
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}:{{ m.content }}]"
            "{% endfor %}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}",
        },
    )
    assert template is not None
    assert template.render(HELLO) == "<s>[user:hello]</s>>"
    assert template.render(HELLO, add_generation_prompt=False) == "<s>[user:hello]</s>"


def test_the_file_beside_the_config_wins(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from the file")
    template = load(tmp_path, {"chat_template": "from the config"})
    assert template is not None
    assert template.render(HELLO) == "from the file"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    template = load(tmp_path, {"chat_template": named})
    assert template is not None
    assert template.render(HELLO) == "D"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    assert load(tmp_path, {"bos_token": "<s>"}) is None


def test_the_helpers_that_templates_expect() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%Y-%m-%d') }} {{ {'b': '<é>', 'a': [1, 2]} | tojson }}"
        "{% generation %} inner{% endgeneration %}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %} {{ i }}{% endfor %}",
        now=lambda: datetime(2026, 3, 1, tzinfo=UTC),
    )
    assert template.render(HELLO) == '2026-03-01 {"b": "<é>", "a": [1, 2]} inner 0 1'


def test_blocks_leave_no_lines_behind() -> None:
    template = ChatTemplate("a\n    {% if true %}\nb\n    {% endif %}\nc")
    assert template.render(HELLO) == "a\nb\nc"


def test_a_refusal_of_the_template_is_named() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template.render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",  # Nothing may be changed.
        "{{ ''.__class__.__mro__ }}",  # Nothing of Python's inside may be reached.
        "{{ messages[5].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ 'x' * 1000000000 }}",  # Nothing may fill the memory.
        "{{ 1000000000 * [1] }}",
        "{{ 10 ** 1000000000 }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_a_template_that_misbehaves_is_an_error(source: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(ChatTemplateError):
        template.render(HELLO)


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTPUT_CHARACTERS_MAX", 1000)
    template = ChatTemplate("{% for i in range(99) %}{{ 'x' * 20 }}{% endfor %}")
    with pytest.raises(ChatTemplateError, match="longer than 1000 characters"):
        template.render(HELLO)


def test_what_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}")
