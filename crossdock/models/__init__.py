"""Models on disk: the cache, fetching into it, and tiny random models for tests."""

from crossdock.models.cache import ModelEntry, cache_directory, list_models, resolve
from crossdock.models.catalog import CATALOG, DEFAULT_MODEL, DTYPES, CatalogEntry, Dtype
from crossdock.models.errors import (
    ModelDirectoryError,
    ModelError,
    ModelFetchError,
    ModelNotFetchedError,
    UnknownModelError,
)
from crossdock.models.fetching import Progress, Stage, fetch

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "DTYPES",
    "CatalogEntry",
    "Dtype",
    "ModelDirectoryError",
    "ModelEntry",
    "ModelError",
    "ModelFetchError",
    "ModelNotFetchedError",
    "Progress",
    "Stage",
    "UnknownModelError",
    "cache_directory",
    "fetch",
    "list_models",
    "resolve",
]
