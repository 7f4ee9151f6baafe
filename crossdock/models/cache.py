"""The user's model cache: one Hugging Face directory a model, complete or absent."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from crossdock.models.catalog import (
    BUNDLED,
    CATALOG,
    CatalogEntry,
    bundled_directory,
    known_names,
)
from crossdock.models.errors import (
    ModelDirectoryError,
    ModelError,
    ModelNotFetchedError,
    UnknownModelError,
)
from crossdock.models.weights_file import expected_bytes


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that is in the cache or can be fetched into it."""

    name: str
    dtype: str  # As config.json says it: "float32", "bfloat16"; of a catalog entry "f32", "bf16".
    path: Path
    fetched: bool
    size_bytes: int  # On disk; 0 when not fetched.


def cache_directory() -> Path:
    """Where models are kept: $XDG_CACHE_HOME (when absolute) or ~/.cache, /crossdock/models."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    return base / "crossdock" / "models"


def list_models() -> list[ModelEntry]:
    """The catalog, the bundled models, then what else lies in the cache; by name."""
    root = cache_directory()
    entries = [_catalog_model(entry, root / entry.name) for entry in CATALOG.values()]
    bundled = [bundled_directory(name) for name in BUNDLED]
    entries += [_own_model(path) for path in bundled if is_complete(path)]
    if root.is_dir():
        entries += [
            _own_model(path)
            for path in sorted(root.iterdir())
            if path.name not in CATALOG and is_complete(path) and not path.name.startswith(".")
        ]
    return entries


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The complete model directory that the user means.

    A name of the cache comes first, then a bundled one, then a path. Raises ModelNotFetchedError,
    ModelDirectoryError or UnknownModelError; each says what to do.
    """
    text = os.fspath(name_or_path)
    in_cache = cache_directory() / text
    is_name = bool(text) and "/" not in text and not text.startswith(".")
    if is_name and in_cache.is_dir():
        check_model_directory(in_cache)
        return in_cache
    if text in BUNDLED:
        check_model_directory(bundled_directory(text))
        return bundled_directory(text)
    path = Path(text).expanduser()
    if text and path.is_dir():
        check_model_directory(path)
        return path.resolve()
    if text in CATALOG:
        raise ModelNotFetchedError(
            f"{text} is not in {cache_directory()} yet: run `crossdock model fetch {text}`"
        )
    raise UnknownModelError(
        f"{text!r} is neither a directory nor a known model ({known_names()}): give the path "
        "of a Hugging Face directory, or fetch one of these with `crossdock model fetch NAME`"
    )


def check_model_directory(path: Path) -> None:
    """Raises ModelDirectoryError unless config, tokenizer and all weights are there, whole.

    Only sizes are compared; names and shapes of tensors are the engine's to check.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise ModelDirectoryError(
                f"{path} has no {name}: it must be a complete Hugging Face model directory"
            )
    _read_json(path / "config.json")
    for file in weight_files(path):
        try:
            expected, actual = expected_bytes(file), file.stat().st_size
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelDirectoryError(f"{file} is not a safetensors file: {error}") from error
        if expected != actual:
            raise ModelDirectoryError(
                f"{file} has {actual} bytes, its header promises {expected}: copy or fetch it again"
            )


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of the directory: one, or the shards that its index names."""
    single = path / "model.safetensors"
    index = path / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelDirectoryError(f"{path} has neither {single.name} nor {index.name}")
    shard_of = _read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise ModelDirectoryError(f"{index} has no weight_map")
    shards = [path / str(name) for name in sorted(set(shard_of.values()))]
    for shard in shards:
        if not shard.is_file():
            raise ModelDirectoryError(f"{shard} is missing, though {index.name} names it")
    return shards


def is_complete(path: Path) -> bool:
    """Whether a model may be served from there."""
    try:
        check_model_directory(path)
    except (ModelError, OSError):
        return False
    return True


def _catalog_model(entry: CatalogEntry, path: Path) -> ModelEntry:
    fetched = is_complete(path)
    size = _size_bytes(path) if fetched else 0
    return ModelEntry(entry.name, entry.dtype, path, fetched, size)


def _own_model(path: Path) -> ModelEntry:
    config = _read_json(path / "config.json")
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "")
    return ModelEntry(path.name, dtype, path, True, _size_bytes(path))


def _size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} is not a JSON object")
    return value
