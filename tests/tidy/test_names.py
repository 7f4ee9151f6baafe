"""One word a thing, and no name that says nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.tidy import exceptions
from tests.tidy.sources import read, texts, written_by_hand

_VAGUE = re.compile(r"(Manager|Helper|Util|Utils|Handler|Processor|Data|Info)$")
_CPP_TYPE = re.compile(r"^\s*(?:class|struct|enum(?:\s+class)?)\s+(\w+)\s*(?:final\s*)?[:{]", re.M)
_PROTO_TYPE = re.compile(r"^\s*(?:message|enum|service)\s+(\w+)\s*{", re.M)
_VAGUE_MODULES = {"common", "core", "helpers", "misc", "util", "utils"}
# Another word for a thing that has one: the right-hand side says which.
_SYNONYMS = {
    r"\breq_id\b": "request_id",
    r"\bseq_id\b": "sequence_id",
    r"\bpage_(?:table|id)s?\b|\b(?:kv|block)_pages?\b": "block",
    r"\bblock_size_tokens\b|\btokens_per_block\b": "kBlockTokens",
}
# Spelled in two parts, so that this file does not hold them itself.
_UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def _types(path: str) -> list[str]:
    text = read(path)
    if path.endswith((".py", ".pyi")):
        return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return (_PROTO_TYPE if path.endswith(".proto") else _CPP_TYPE).findall(text)


def test_types_have_telling_names() -> None:
    vague = [
        f"{path}:{name}"
        for path in written_by_hand(".py", ".pyi", ".h", ".cpp", ".proto")
        for name in _types(path)
        if _VAGUE.search(name) and f"{path}:{name}" not in exceptions.VAGUE_NAMES
    ]
    assert not vague


def test_modules_have_telling_names() -> None:
    vague = [
        path
        for path in written_by_hand(".py", ".h", ".cpp", ".proto")
        if _VAGUE_MODULES & {Path(path).stem, *Path(path).parts}
    ]
    assert not vague


def test_one_word_a_thing() -> None:
    other_words = [
        f"{path}:{read(path).count(chr(10), 0, match.start()) + 1}: {match[0]}, say {word}"
        for path in written_by_hand(".py", ".pyi", ".h", ".cpp", ".proto")
        if path != "tests/tidy/test_names.py"
        for synonym, word in _SYNONYMS.items()
        for match in re.finditer(synonym, read(path))
    ]
    assert not other_words


def test_nothing_is_left_to_do() -> None:
    unfinished = [
        f"{path}:{number}"
        for path in texts()
        for number, line in enumerate(read(path).splitlines(), start=1)
        if _UNFINISHED.search(line)
    ]
    assert not unfinished
