"""Which formats lose nothing: their perplexity over one text, by each program's own arithmetic.

The text is Python's documentation of its topics, which comes with every interpreter. A program's
perplexities are compared with each other alone: the programs cut the text differently.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

from bench.gguf_formats import gguf_directory, gguf_file
from bench.peer_programs import LlamaPrograms, PeerError, pinned, run
from crossdock.models.packed import packed_directory
from crossdock.models.perplexity import WINDOW_BLOCKS, measure_perplexity
from crossdock.tokenization import Tokenizer

_CONTEXT_TOKENS: Final = 512
_CHUNKS: Final = 16
_TOKENS: Final = 2_048
# Enough for the chunks; about four characters make a token.
_TEXT_CHARACTERS: Final = 6 * _CONTEXT_TOKENS * _CHUNKS


def text() -> str:
    """The beginning of the documentation, topic by topic."""
    whole = "\n\n".join(topics[name] for name in sorted(topics))
    return whole[:_TEXT_CHARACTERS]


def of_crossdock(model: Path, dtypes: Iterable[str], threads: int) -> dict[str, float]:
    """By weight dtype, KV in f32. Raises StatusError where the model cannot be loaded."""
    from crossdock._native import Executor

    token_ids = Tokenizer.load(model).encode(text())[:_TOKENS]
    values = {}
    for dtype in dtypes:
        executor = Executor.load(
            str(model),
            num_blocks=WINDOW_BLOCKS,
            weight_dtype=dtype,
            num_threads=threads,
            cache_directory=str(packed_directory()),
        )
        values[dtype] = measure_perplexity(executor, token_ids).value
    return values


def of_llama(programs: LlamaPrograms, formats: Iterable[str], threads: int) -> dict[str, float]:
    """By format; measured once a text and kept beside the models. Raises PeerError."""
    kept = gguf_directory() / "perplexity.json"
    key = hashlib.sha256(text().encode()).hexdigest()[:16]
    known: dict[str, float] = {}
    if kept.is_file():
        stored = json.loads(kept.read_text(encoding="utf-8"))
        known = stored["values"] if stored["text"] == key else {}
    for weight_format in formats:
        if weight_format not in known:
            known[weight_format] = _measure(programs, gguf_file(weight_format), threads)
            kept.write_text(json.dumps({"text": key, "values": known}), encoding="utf-8")
    return {weight_format: known[weight_format] for weight_format in formats}


def _measure(programs: LlamaPrograms, model: Path, threads: int) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text())
        file.flush()
        command: list[str | Path] = [
            *(programs.path("llama-perplexity"), "-m", model, "-f", file.name),
            *("-c", str(_CONTEXT_TOKENS), "--chunks", str(_CHUNKS), "-t", str(threads)),
        ]
        done = run(pinned(threads, command))
    match = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if match is None:
        raise PeerError(f"llama-perplexity printed no estimate: {done.stderr[-200:]!r}")
    return float(match[1])
