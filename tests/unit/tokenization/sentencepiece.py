"""A small tokenizer of SentencePiece's kind: its text of a token depends on the neighbours."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as LibraryTokenizer

from crossdock.tokenization import Tokenizer

END_ID = 0


def sentencepiece_tokenizer() -> Tokenizer:
    """Words begin with a mark for the space; what is not in the vocabulary falls to bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz.,"]
    pairs = [("\u2581", letter) for letter in "abcthe"] + [("h", "e"), ("\u2581t", "he")]
    tokens = ["</s>", *bytes_, *letters, *(left + right for left, right in pairs)]
    library = LibraryTokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=pairs,
            byte_fallback=True,
        )
    )
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    library.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return Tokenizer(library)
