"""The ten prompts on which engines and transformers are compared: one place, every topology.

They differ in what tends to break: a single token, lengths around the block of 32 tokens and the
second block, more than one chunk of 2,048, scripts whose characters span tokens, code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

GOLDEN_PROMPT: Final = "The capital of France is"
GOLDEN_IDS: Final = (7042, 30, 198, 198, 504, 2988, 314, 42)

NUM_GENERATED: Final = 64  # Tokens to compare after each prompt.
LONG_PROMPT_TOKENS: Final = 2100

_PASSAGE: Final = (
    "The harbour lay quiet under a thin layer of fog. Along the pier the fishing boats knocked "
    "softly against their moorings, and somewhere behind the warehouses a dog was barking at "
    "nothing in particular. Marta counted the crates twice, wrote the number down, and looked "
    "out to where the lighthouse should have been. By nine the sun would burn the fog away, and "
    "the first ferry would bring the tourists, the post and, if the letter had been right, her "
    "brother, whom she had not seen since the winter of the great storm."
)
_FRENCH: Final = (
    "Il était une fois, dans un petit village près de Besançon, un horloger qui réparait les "
    "montres de ses voisins sans jamais demander d'argent. Un jour,"
)
_MIXED_SCRIPTS: Final = (
    "北京是中国的首都。東京は日本の首都です。Москва — столица России. القاهرة 🇪🇬 👩‍👩‍👧 "
)
_CODE: Final = '''def binary_search(items: list[int], wanted: int) -> int:
    """Index of `wanted` in the sorted list, or -1."""
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
'''


class Encoder(Protocol):
    """What is needed of a tokenizer; crossdock.tokenization.Tokenizer has it."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


def build_prompts(tokenizer: Encoder) -> dict[str, list[int]]:
    """Token ids of the ten prompts, by name."""

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(text)

    def cut(num_tokens: int) -> list[int]:
        return _exactly(encoded, lambda count: " ".join([_PASSAGE] * count), num_tokens)

    return {
        "golden": encoded(GOLDEN_PROMPT),
        "one_token": encoded("Once")[:1],
        "tokens_31": cut(31),
        "tokens_32": cut(32),
        "tokens_33": cut(33),
        "tokens_64": cut(64),
        "over_2048": _exactly(encoded, _logbook, LONG_PROMPT_TOKENS),
        "french": encoded(_FRENCH),
        "mixed_scripts": encoded(_MIXED_SCRIPTS),
        "code": encoded(_CODE),
    }


def _logbook(num_entries: int) -> str:
    """A long text that does not repeat itself, so that every block of it differs."""
    places = ("the north pier", "the old mill", "Saint Anne's bridge", "the market", "the quarry")
    return "\n".join(
        f"Entry {number}: at {places[number % 5]} we counted {number * 7919 % 613} gulls and "
        f"{number * 104729 % 89} boats; the wind came from {number * 37 % 360} degrees."
        for number in range(1, num_entries + 1)
    )


def _exactly(
    encoded: Callable[[str], list[int]], text_of: Callable[[int], str], num_tokens: int
) -> list[int]:
    """The first `num_tokens` ids of a text that is made long enough."""
    count = 1
    while len(ids := encoded(text_of(count))) < num_tokens:
        count *= 2
    return ids[:num_tokens]
