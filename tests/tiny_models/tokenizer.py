"""The tokenizer of tiny random models: bytes, a few merges, ChatML."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NUM_BYTES: Final = 256
VOCAB_SIZE_MIN: Final = len(SPECIAL_TOKENS) + _NUM_BYTES

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tiny_tokenizer(directory: Path, vocab_size: int, context_tokens: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json; every id is a token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(itertools.islice(_merges(), vocab_size - VOCAB_SIZE_MIN))
    tokens = [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "unk_token": SPECIAL_TOKENS[0],
        "pad_token": SPECIAL_TOKENS[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _merges() -> Iterator[tuple[str, str]]:
    """Endless distinct merges, frequent English letters first: two letters, then three, ..."""
    letters = "etaoinshrdlucmfwygpbvkxqjz"
    previous = ["Ġ", *letters]  # Ġ stands for the space in a byte-level vocabulary.
    while True:
        following = []
        for left in previous:
            for right in letters:
                yield left, right
                following.append(left + right)
        previous = following
