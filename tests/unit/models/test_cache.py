from __future__ import annotations

from pathlib import Path

import pytest

from crossdock.models import (
    DEFAULT_MODEL,
    ModelNotFetchedError,
    UnknownModelError,
    cache_directory,
    fetch,
    list_models,
    resolve,
)
from crossdock.models.catalog import BUNDLED
from crossdock.models.errors import ModelDirectoryError
from tests.tiny_models.directory import TinyModel, write_tiny_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "crossdock" / "models"


def test_the_cache_follows_the_desktop_standard(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_directory() == cache
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_directory() == tmp_path / ".cache" / "crossdock" / "models"


def test_a_name_of_the_cache_resolves(cache: Path) -> None:
    write_tiny_model(cache / "mine")
    assert resolve("mine") == cache / "mine"


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model_resolves_with_nothing_fetched(
    cache: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = resolve(name)
    assert directory.name == name
    assert sum(file.stat().st_size for file in directory.iterdir()) < 12_000_000
    assert fetch(name) == directory
    (listed,) = (entry for entry in list_models() if entry.name == name)
    assert (listed.path, listed.fetched, listed.dtype) == (directory, True, "bfloat16")
    assert not cache.exists()
    # What the user put into the cache under that name is meant first.
    write_tiny_model(cache / name)
    assert resolve(name) == cache / name


def test_a_bundled_model_has_one_dtype() -> None:
    with pytest.raises(UnknownModelError, match="tiny-mla is bf16"):
        fetch("tiny-mla", dtype="f32")


def test_a_path_resolves(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cache.exists()
    write_tiny_model(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    for spelled in ("here", "./here", str(tmp_path / "here"), tmp_path / "here"):
        assert resolve(spelled) == tmp_path / "here"


def test_a_model_that_is_not_fetched_says_how(cache: Path) -> None:
    with pytest.raises(ModelNotFetchedError, match=f"crossdock model fetch {DEFAULT_MODEL}"):
        resolve(DEFAULT_MODEL)
    assert not cache.exists()


@pytest.mark.parametrize("name", ["", "no-such-model", "/no/such/path", "..", "../models"])
def test_an_unknown_name_lists_the_known(cache: Path, name: str, tmp_path: Path) -> None:
    del cache
    if name == "..":
        with pytest.raises(ModelDirectoryError, match=r"config\.json"):
            resolve(tmp_path / name)
        return
    with pytest.raises(UnknownModelError, match=DEFAULT_MODEL):
        resolve(name)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "config.json").unlink(), r"no config\.json"),
        (lambda d: (d / "tokenizer.json").unlink(), r"no tokenizer\.json"),
        (lambda d: (d / "config.json").write_text("{"), "cannot be read"),
        (lambda d: (d / "config.json").write_text("[]"), "not a JSON object"),
        (lambda d: (d / "model-00002-of-00002.safetensors").unlink(), "is missing"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{}"), "no weight_map"),
        (lambda d: (d / "model.safetensors.index.json").unlink(), "neither"),
        (lambda d: _truncate(d / "model-00001-of-00002.safetensors", -1), "header promises"),
        (lambda d: _truncate(d / "model-00001-of-00002.safetensors", 100), "not a safetensors"),
    ],
)
def test_a_damaged_directory_is_named(tmp_path: Path, spoil: object, message: str) -> None:
    directory = write_tiny_model(tmp_path / "d", TinyModel(num_shards=2))
    assert resolve(directory) == directory
    assert callable(spoil)
    spoil(directory)
    with pytest.raises(ModelDirectoryError, match=message):
        resolve(directory)


def _truncate(path: Path, size: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:size])


def test_the_list_has_the_catalog_and_the_users_own(cache: Path) -> None:
    write_tiny_model(cache / "mine", TinyModel(dtype="bf16"))
    write_tiny_model(cache / ".hidden")
    (cache / "rubbish").mkdir()
    listed = {entry.name: entry for entry in list_models()}
    assert set(listed) == {DEFAULT_MODEL, f"{DEFAULT_MODEL}-bf16", *BUNDLED, "mine"}
    assert not listed[DEFAULT_MODEL].fetched
    assert listed[DEFAULT_MODEL].size_bytes == 0
    assert listed["mine"].fetched
    assert listed["mine"].dtype == "bfloat16"
    assert listed["mine"].size_bytes == sum(f.stat().st_size for f in (cache / "mine").iterdir())
