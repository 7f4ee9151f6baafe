"""What a reader of the four works makes of small ones of the same formats."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

from tools.tiny_mla_text import (
    HELD_OUT_BYTES_PER_WORK,
    HELD_OUT_EVERY,
    Section,
    held_out_text,
    read_sections,
)

PROSE = "It was a sentence of some length, such as a reader of novels would not skip at all."
PAGE = f""".. _anchor:

:mod:`bisect` --- Array bisection
=================================

.. module:: bisect
   :synopsis: Not prose.

{PROSE} It has a :class:`~a.b.Role`, ``code``, *stress* and a `link <http://x>`_.

.. function:: bisect(a, x)

   Locate the point *x* in the list, which is **sorted** already
   (see :ref:`the rest <anchor>`), and return it to the caller.

   >>> bisect([1], 2)

+---+
| 1 |
+---+
"""
JARGON = f"""Front matter

   :kluge: /klooj/, n.

   [from the German] {PROSE} See {{hack}} or {{crock}}.

   (The next cartoon is elsewhere.)

K

   :/me: //

   {PROSE}

Appendix A. Folklore
"""


def _r_object(lines: list[str]) -> bytes:
    strings = b"".join(
        b"\0\4\0\t" + len(line.encode()).to_bytes(4) + line.encode() for line in lines
    )
    header = b"X\n" + bytes(12) + (5).to_bytes(4) + b"UTF-8" + (16).to_bytes(4)
    packed = zlib.compress(header + len(lines).to_bytes(4) + strings)
    return bytes(4) + packed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The unpacked packages; all but the first chapters are too short to be sections."""
    bible = tmp_path / "usr/bin/bible"
    bible.parent.mkdir(parents=True)
    verses = [f"B{chr(97 + n % 26)}{chr(97 + n // 26)}1:1 Short." for n in range(66)]
    verses[1:1] = [f"Baa2:{verse} {PROSE}" for verse in (1, 2)]
    bible.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(verses) + "\nEND\n")
    bible.chmod(0o755)
    novels = tmp_path / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    novels.parent.mkdir(parents=True)
    emma = ["EMMA", "", "CHAPTER I", "", f"_{PROSE}_", PROSE, "", "\u201cOh!\u201d", "", "FINIS"]
    novels.write_bytes(_r_object(emma) + b"".join(_r_object(["A novel"]) for _ in range(5)))
    page = tmp_path / "usr/share/doc/python3.11/html/_sources/library/bisect.rst.txt"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE)
    jargon = tmp_path / "usr/share/doc/jargon-text/jargon.txt.gz"
    jargon.parent.mkdir(parents=True)
    jargon.write_bytes(gzip.compress(JARGON.encode()))
    return tmp_path


def test_each_work_is_cut_into_plain_sections(root: Path) -> None:
    train, held_out = read_sections(root)
    assert held_out == []
    assert train == [
        Section("bible", "Genesis 2", f"{PROSE} {PROSE}"),
        Section("austen", "Emma, chapter 1", f'{PROSE} {PROSE}\n\n"Oh!"'),
        Section(
            "python",
            "bisect --- Array bisection",
            f"{PROSE} It has a Role, code, stress and a link.\n\nLocate the point x in the list, "
            "which is sorted already (see the rest), and return it to the caller.",
        ),
        Section("jargon", "kluge", f"kluge: [from the German] {PROSE} See hack or crock."),
    ]


def test_every_fiftieth_section_of_a_work_is_held_out(root: Path) -> None:
    entries = "".join(f"   :term{n}: n.\n\n   {PROSE} {PROSE}\n\n" for n in range(101))
    path = root / "usr/share/doc/jargon-text/jargon.txt.gz"
    path.write_bytes(gzip.compress(f"Front\n\n{entries}\nAppendix A. End\n".encode()))
    train, held_out = read_sections(root)
    assert HELD_OUT_EVERY == 50
    assert [section.title for section in held_out] == ["term25", "term75"]
    assert not {s.title for s in train} & {"term25", "term75"}
    assert len(train) == 3 + 99


def test_the_excerpt_has_a_share_of_each_work_and_ends_with_sentences() -> None:
    long = Section("a", "long", f"{PROSE} " * 1000)
    text = held_out_text([long, long, Section("b", "short", PROSE), Section("b", "2", "More.")])
    first, *rest = text.split("\n\n")
    assert HELD_OUT_BYTES_PER_WORK - 2 * len(PROSE) < len(first) <= HELD_OUT_BYTES_PER_WORK
    assert first.endswith("at all.")
    assert rest == [PROSE, "More.\n"]
