"""Renders chat messages into a prompt by the template of a model directory.

The template is a program that came with the model: it runs in jinja2's sandbox, sees no object of
ours that it could change, and its output is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUTPUT_CHARACTERS_MAX: Final = 16 << 20
# Longest string or list that an expression of a template may make by multiplication.
_REPEATED_ITEMS_MAX: Final = 1 << 16
_SPECIAL_TOKEN_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplateError(ValueError):
    """The template is broken, or refuses these messages; the message says which."""


class ChatTemplate:
    """A compiled chat template. Immutable: threads may share it."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        """`special_tokens` maps names such as "bos_token" to the tokens' text; `now` is the
        clock of templates that print a date."""
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate | None:
        """The template of the model directory; None when it has none."""
        config = _tokenizer_config(directory)
        file = directory / "chat_template.jinja"
        source = (
            file.read_text(encoding="utf-8")
            if file.is_file()
            else _default_template(config.get("chat_template"))
        )
        if source is None:
            return None
        tokens = {name: _token_text(config.get(name)) for name in _SPECIAL_TOKEN_NAMES}
        return cls(source, special_tokens={k: v for k, v in tokens.items() if v is not None})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt; raises ChatTemplateError when the template refuses the messages."""
        pieces: list[str] = []
        num_characters = 0
        try:
            for piece in self._template.generate(
                **self._special_tokens,
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
            ):
                pieces.append(piece)
                num_characters += len(piece)
                if num_characters > OUTPUT_CHARACTERS_MAX:
                    raise ChatTemplateError(
                        f"the prompt would be longer than {OUTPUT_CHARACTERS_MAX} characters"
                    )
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses the messages: {error}") from error
        # A template may index, add or call anything, with the errors of Python.
        except (TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            raise ChatTemplateError(
                f"the chat template cannot render the messages: {error}"
            ) from error
        return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with multiplication bounded: it could fill the memory in one expression."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self,
        context: jinja2.runtime.Context,
        operator: str,
        left: Any,
        right: Any,
    ) -> Any:
        if operator == "**":
            raise jinja2.exceptions.SecurityError("a chat template must not use **")
        for value, times in ((left, right), (right, left)):
            repeats = isinstance(value, str | bytes | list | tuple) and isinstance(times, int)
            if repeats and len(value) * times > _REPEATED_ITEMS_MAX:
                raise jinja2.exceptions.SecurityError("a chat template repeats a value too often")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's part, for training masks;
    for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 -- the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike jinja2's own filter: a prompt is not HTML, so nothing is escaped.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _tokenizer_config(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ChatTemplateError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ChatTemplateError(f"{path} is not a JSON object")
    return config


def _default_template(value: Any) -> str | None:
    """A template is a string, or one of several named ones."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _token_text(value: Any) -> str | None:
    """A special token is its text, or an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
