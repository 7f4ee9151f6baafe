"""Between text and token ids: tokenizer, chat template, incremental text, stop strings."""

from crossdock.tokenization.chat_template import ChatTemplate, ChatTemplateError
from crossdock.tokenization.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    make_detokenizer,
)
from crossdock.tokenization.stop_matcher import StopMatcher, StopPush
from crossdock.tokenization.tokenizer import TokenizationError, Tokenizer

__all__ = [
    "ByteDetokenizer",
    "ChatTemplate",
    "ChatTemplateError",
    "Detokenizer",
    "StopMatcher",
    "StopPush",
    "TokenizationError",
    "Tokenizer",
    "WindowDetokenizer",
    "make_detokenizer",
]
