"""From what a caller sent to prompt token ids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from crossdock.errors import invalid_argument
from crossdock.tokenization import ChatTemplate, ChatTemplateError, Tokenizer
from services.router.validation import Limits, check_chat, check_text, check_text_bytes

# Longer texts are tokenised on a thread, since every stream of the router would wait for them:
# measured with SmolLM2's tokenizer, 2.8 s for a million characters. A thread's hop costs 0.1 ms.
INLINE_CHARACTERS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text."""

    text: str
    field: str = "text"


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: tuple[int, ...]
    field: str = "token_ids"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """(role, content) messages for the model's chat template."""

    messages: tuple[tuple[str, str], ...]
    field: str = "messages"


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class Prompter:
    """The model's tokenizer and chat template. Immutable; used on one event loop."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._token_bytes_max: int | None = None

    async def encode(self, prompt: Prompt, limits: Limits) -> tuple[int, ...]:
        """The prompt's token ids. What the prompt lacks is INVALID_ARGUMENT.

        A text that cannot fit the context whatever its tokens are is refused before it costs
        seconds to know exactly.
        """
        match prompt:
            case TokenPrompt():
                return prompt.token_ids
            case TextPrompt():
                check_text(prompt.text, prompt.field)
                self._check_size(prompt.text, limits, prompt.field)
                return await self.encode_text(prompt.text, add_special_tokens=True)
            case ChatPrompt():
                check_chat(prompt.messages, prompt.field)
                for _, content in prompt.messages:
                    self._check_size(content, limits, prompt.field)
                return await self._encode_chat(prompt)

    async def encode_text(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """On a thread when the text is long."""
        if len(text) <= INLINE_CHARACTERS_MAX:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    async def decode(self, token_ids: tuple[int, ...]) -> str:
        """The whole text, special tokens left out."""
        if len(token_ids) <= INLINE_CHARACTERS_MAX:
            return self.tokenizer.decode(token_ids)
        return await asyncio.to_thread(self.tokenizer.decode, token_ids)

    async def _encode_chat(self, prompt: ChatPrompt) -> tuple[int, ...]:
        template = self._template
        if template is None:
            raise invalid_argument(
                prompt.field, "the model has no chat template; send a text prompt instead"
            )
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        num_characters = sum(len(content) for _, content in prompt.messages)

        def render() -> str:
            return template.render(messages, add_generation_prompt=True)

        try:
            if num_characters <= INLINE_CHARACTERS_MAX:
                text = render()
            else:
                text = await asyncio.to_thread(render)
        except ChatTemplateError as error:
            raise invalid_argument(prompt.field, str(error)) from error
        return await self.encode_text(text, add_special_tokens=False)

    def _check_size(self, text: str, limits: Limits, field: str) -> None:
        if len(text) <= INLINE_CHARACTERS_MAX or not self.tokenizer.is_byte_level:
            return
        if self._token_bytes_max is None:
            token_bytes = self.tokenizer.token_bytes
            self._token_bytes_max = max(len(token_bytes(i)) for i in range(limits.vocab_size))
        check_text_bytes(text, limits.context_tokens_max * self._token_bytes_max, field)

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
