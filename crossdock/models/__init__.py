"""Models on disk: the cache, and fetching into it."""

from crossdock.models.cache import cache_directory, list_models, resolve
from crossdock.models.catalog import DEFAULT_MODEL, Dtype
from crossdock.models.errors import (
    ModelError,
    ModelFetchError,
    ModelNotFetchedError,
    UnknownModelError,
)
from crossdock.models.fetching import Stage, fetch

__all__ = [
    "DEFAULT_MODEL",
    "Dtype",
    "ModelError",
    "ModelFetchError",
    "ModelNotFetchedError",
    "Stage",
    "UnknownModelError",
    "cache_directory",
    "fetch",
    "list_models",
    "resolve",
]
