"""What can go wrong with a model directory. Each message says what to do about it."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be found, made or read."""


class UnknownModelError(ModelError):
    """The name is neither a directory nor a model that can be fetched."""


class ModelNotFetchedError(ModelError):
    """The model can be fetched, but is not in the cache yet."""


class ModelDirectoryError(ModelError):
    """The directory is there, but is not a complete Hugging Face model."""


class ModelFetchError(ModelError):
    """Fetching failed: no network, a wrong checksum, a full disk, a missing package."""
