"""What the guest finds in its memory: the interpreter and every package that the product imports.

Measured in the guest: an import of `crossdock.cli.main` takes 69 s when each file is looked up on
the host, most of it in waiting for answers about files that are not there.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.roce.cpio import Archive

FOLDER = "preloaded"
# Of the interpreter's library, what no service imports.
_UNUSED = {"ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter"}
_CHECKOUT = ("crossdock", "services", "tests/roce", "tools/roce")


def archive(checkout: Path) -> bytes:
    """An archive with these folders under FOLDER, and their list, which the guest mounts."""
    library, packages = (Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib"))
    folders = [library, packages, *(checkout / name for name in _CHECKOUT)]
    files = {
        *_below(library),
        *_of_distributions(_with_requirements("crossdock"), packages),
        *(path for name in _CHECKOUT for path in _below(checkout / name)),
    }
    result = Archive()
    made: set[Path] = set()
    for path in sorted(files):
        for folder in reversed(path.parents):
            if folder not in made:
                made.add(folder)
                result.add_folder(f"{FOLDER}{folder}")
        result.add_file(
            f"{FOLDER}{path}",
            path.read_bytes(),
            executable=os.access(path, os.X_OK),
            time_s=int(path.stat().st_mtime),
        )
    mounts = "".join(f"{folder}\n" for folder in folders)
    result.add_file(f"{FOLDER}/mounts", mounts.encode())
    return result.finish()


def _below(folder: Path) -> Iterator[Path]:
    for path, names, files in os.walk(folder):
        names[:] = [
            name for name in names if name not in _UNUSED and not name.startswith("config-")
        ]
        yield from (Path(path, name) for name in files if not Path(path, name).is_symlink())


def _with_requirements(name: str) -> Iterable[importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [name]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # Required on another system or by another interpreter.
        for requirement in found[name].requires or ():
            if "extra ==" not in requirement:
                waiting += re.findall(r"^[\w.-]+", requirement)
    return found.values()


def _of_distributions(
    distributions: Iterable[importlib.metadata.Distribution], packages: Path
) -> Iterator[Path]:
    for distribution in distributions:
        for file in distribution.files or ():
            path = Path(os.path.normpath(packages / file))
            if packages in path.parents and path.is_file() and "tests" not in path.parts:
                yield path
