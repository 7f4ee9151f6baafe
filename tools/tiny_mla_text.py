"""The text that the tiny MLA model learns: four works out of Debian packages, cut into sections.

The King James Bible by chapter, Jane Austen's novels by chapter, Python's documentation by page and
the Jargon File by entry. Packages are fetched with apt and unpacked beside it, never installed.
Every 50th section of a work is held out: it is neither trained on nor seen by the tokenizer.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "bible-kjv",  # The program that decodes the next one's compressed text.
    "bible-kjv-text",
    "r-cran-janeaustenr",
    "python3.11-doc",
    "jargon-text",
)
HELD_OUT_EVERY: Final = 50
HELD_OUT_BYTES_PER_WORK: Final = 24_000
_SECTION_BYTES_MIN: Final = 120


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of text that stands alone, and what a reader would call it."""

    work: str
    title: str
    text: str


def fetch_packages(cache: Path) -> Path:
    """Downloads and unpacks what is not there yet; returns the root of the unpacked files."""
    root = cache / "root"
    root.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not any(cache.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", package], cwd=cache, check=True)
        for archive in cache.glob(f"{package}_*.deb"):
            subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
    return root


def read_sections(root: Path) -> tuple[list[Section], list[Section]]:
    """The sections to train on, and those held out."""
    train: list[Section] = []
    held_out: list[Section] = []
    for work in (_bible(root), _austen(root), _python_pages(root), _jargon(root)):
        sections = [section for section in work if len(section.text) >= _SECTION_BYTES_MIN]
        for index, section in enumerate(sections):
            (held_out if index % HELD_OUT_EVERY == HELD_OUT_EVERY // 2 else train).append(section)
    return train, held_out


def held_out_text(held_out: Iterable[Section]) -> str:
    """As much of each work's held-out sections as fits its share of the excerpt."""
    taken: list[str] = []
    room: dict[str, int] = {}
    for section in held_out:
        left = room.setdefault(section.work, HELD_OUT_BYTES_PER_WORK)
        # A section that is cut ends with a whole paragraph, or a whole sentence where it has one
        # paragraph alone.
        text = section.text
        if len(text) > left:
            cut = max(text.rfind("\n\n", 0, left), text.rfind(". ", 0, left) + 1)
            text = text[: max(cut, 0)]
        if text:
            taken.append(text)
        room[section.work] = left - len(text) if len(text) == len(section.text) else 0
    return "\n\n".join(taken) + "\n"


_PLAIN: Final = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "\u2013": "-",
    "\u2026": "...", "\u00a0": " ", "\u00b7": "-", "\u2022": "*", "\u00d7": "x", "`": "'",
})  # fmt: skip


def plain(text: str) -> str:
    """Printable ASCII: a small vocabulary has no bytes to spare for typography."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    return decomposed.encode("ascii", "ignore").decode("ascii")


def paragraphs(lines: Iterable[str]) -> list[str]:
    """Joins wrapped lines; an empty line ends a paragraph."""
    joined = "\n".join(line.strip() for line in lines)
    return [" ".join(block.split()) for block in re.split(r"\n{2,}", joined) if block.strip()]


_BOOKS: Final = """
    Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth 1_Samuel 2_Samuel 1_Kings
    2_Kings 1_Chronicles 2_Chronicles Ezra Nehemiah Esther Job Psalm Proverbs Ecclesiastes
    Song_of_Solomon Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel Amos Obadiah Jonah
    Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts Romans
    1_Corinthians 2_Corinthians Galatians Ephesians Philippians Colossians 1_Thessalonians
    2_Thessalonians 1_Timothy 2_Timothy Titus Philemon Hebrews James 1_Peter 2_Peter 1_John
    2_John 3_John Jude Revelation
"""


def _bible(root: Path) -> Iterator[Section]:
    data = root / "usr/lib"
    dump = subprocess.run(
        [root / "usr/bin/bible", "-f", "-p", str(data), "Gen1:1-Rev22:21"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    verses = re.findall(r"^(\w+?)(\d+):\d+ (.+)$", dump.stdout, re.MULTILINE)
    chapters: dict[tuple[str, str], list[str]] = {}
    for book, chapter, verse in verses:
        chapters.setdefault((book, chapter), []).append(plain(verse.strip()))
    abbreviations = list(dict.fromkeys(book for book, _ in chapters))
    names = dict(zip(abbreviations, _BOOKS.split(), strict=True))
    for (book, chapter), texts in chapters.items():
        title = f"{names[book].replace('_', ' ')} {chapter}"
        yield Section("bible", title, " ".join(texts))


_NOVELS: Final = (
    "Emma", "Mansfield Park", "Northanger Abbey", "Persuasion", "Pride and Prejudice",
    "Sense and Sensibility",
)  # fmt: skip


def _austen(root: Path) -> Iterator[Section]:
    packed = (root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    start = 0
    for novel in _NOVELS:
        # A lazy-loaded R object: its size in four bytes, then a zlib stream.
        stream = zlib.decompressobj()
        lines = _r_strings(stream.decompress(packed[start + 4 :]))
        start = len(packed) - len(stream.unused_data)
        chapters = re.split(r"\n *chapter [0-9ivxl]+\.?\b[^\n]*\n", "\n".join(lines), flags=re.I)
        for number, chapter in enumerate(chapters[1:], 1):
            text = "\n\n".join(
                paragraph
                for paragraph in paragraphs(plain(chapter).replace("_", "").split("\n"))
                if not re.fullmatch(r"(VOLUME|END OF|FINIS|THE END).*", paragraph, re.I)
            )
            yield Section("austen", f"{novel}, chapter {number}", text)


def _r_strings(serialized: bytes) -> Iterator[str]:
    """The elements of a character vector in R's XDR serialization, version 3."""
    encoding_bytes = int.from_bytes(serialized[14:18])
    at = 18 + encoding_bytes
    kind, count = serialized[at + 3], int.from_bytes(serialized[at + 4 : at + 8])
    assert (serialized[:2], kind) == (b"X\n", 16), "not a character vector"
    at += 8
    for _ in range(count):
        size = int.from_bytes(serialized[at + 4 : at + 8])
        yield serialized[at + 8 : at + 8 + size].decode("utf-8", "replace")
        at += 8 + size


def _python_pages(root: Path) -> Iterator[Section]:
    sources = root / "usr/share/doc/python3.11/html/_sources"
    for page in sorted(sources.rglob("*.rst.txt")):
        if page.name.startswith("changelog"):
            continue
        source = page.read_text(encoding="utf-8")
        title = re.search(r"^(\S[^\n]*)\n([=*#])\2{3,}\s*$", source, re.MULTILINE)
        text = "\n\n".join(_prose(source))
        yield Section("python", _inline(title[1]) if title else page.name.split(".")[0], text)


def _prose(source: str) -> Iterator[str]:
    """The English paragraphs of a reStructuredText page, without code, tables and directives."""
    for block in re.split(r"\n\s*\n", re.sub(r"^\.\. [^\n]*::[^\n]*$", "\n", source, flags=re.M)):
        lines = [line.strip() for line in block.strip("\n").split("\n")]
        first = lines[0]
        if re.match(r"\.\. |:\w|>>>|[|+=#*\-~^\"'_]{3,}|\$ ", first) or "::" in first[:-2]:
            continue
        text = _inline(re.sub(r"^([*\-]|#\.|\(?\d+[.)])\s+", "", " ".join(lines)))
        letters = sum(c.isalpha() or c == " " for c in text)
        is_sentence = re.match(r"[A-Z'\"(*]", text) and re.search(r"[.:?!]\)?$", text)
        if is_sentence and letters > 0.85 * len(text) and len(text) > 50:
            yield text


def _inline(text: str) -> str:
    text = re.sub(r":[\w:+\-]+:`~[\w.]*?(\w+(?:\(\))?)`", r"\1", text)
    text = re.sub(r":[\w:+\-]+:`!?([^`<]*?)(?:\s*<[^`>]*>)?`", r"\1", text)
    text = re.sub(r"`([^`<]*?)\s*<[^`>]*>`_+", r"\1", text)
    text = re.sub(r"``([^`]*)``", r"\1", text)
    text = re.sub(r"(?<!\w)\*{1,2}([^*\s][^*]*)\*{1,2}", r"\1", text)
    text = re.sub(r"::$", ":", re.sub(r"\\(.)", r"\1", text))
    return " ".join(plain(text.replace("`", "").replace("|version|", "3.11")).split())


def _jargon(root: Path) -> Iterator[Section]:
    packed = (root / "usr/share/doc/jargon-text/jargon.txt.gz").read_bytes()
    body = gzip.decompress(packed).decode("utf-8").replace("{", "").replace("}", "")
    lexicon = re.split(r"^ {3}:(?=\S)", body, flags=re.MULTILINE)
    lexicon[-1] = re.split(r"^Appendix A", lexicon[-1], flags=re.MULTILINE)[0]
    for entry in lexicon[1:]:
        head, _, rest = entry.partition("\n\n")
        term = plain(head.partition(":")[0])
        # A lone capital on a line heads the next letter's entries; pictures are not in the file.
        kept = [
            text
            for text in paragraphs(plain(rest).split("\n"))
            if len(text) > 3 and not re.match(r"\(The (next|previous|first) cartoon", text)
        ]
        if "/" not in term and kept:
            yield Section("jargon", term, f"{term}: " + "\n\n".join(kept))
