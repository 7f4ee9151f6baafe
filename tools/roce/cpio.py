"""Writes the archive format of an initrd: cpio, in its "newc" form."""

from __future__ import annotations

_FOLDER = 0o040755
_FILE = 0o100644
_EXECUTABLE = 0o100755


class Archive:
    """Entries in the order in which they were added."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._num_entries = 0

    def add_folder(self, name: str) -> None:
        self._add(name, _FOLDER, b"")

    def add_file(
        self, name: str, content: bytes, *, executable: bool = False, time_s: int = 0
    ) -> None:
        """`time_s`: of its last change, which compiled Python is compared with."""
        self._add(name, _EXECUTABLE if executable else _FILE, content, time_s)

    def finish(self) -> bytes:
        self._add("TRAILER!!!", 0, b"")
        return b"".join(self._parts)

    def _add(self, name: str, mode: int, content: bytes, time_s: int = 0) -> None:
        self._num_entries += 1
        encoded = name.encode() + b"\0"
        # inode, mode, uid, gid, links, time, size, two devices of two numbers each, name, checksum
        fields = [self._num_entries, mode, 0, 0, 1, time_s, len(content)]
        fields += [0, 0, 0, 0, len(encoded), 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        self._parts += [_padded(header + encoded), _padded(content)]


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)
