"""What a service must know of a model beside its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from crossdock.models.errors import ModelDirectoryError


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts from config.json and generation_config.json."""

    name: str  # The directory's name.
    architecture: str  # As "LlamaForCausalLM".
    context_tokens_max: int  # Prompt and continuation together.
    vocab_size: int  # Token ids are 0 to vocab_size - 1.
    eos_ids: tuple[int, ...]  # Ids that end a sequence, ascending.


def read_info(directory: Path) -> ModelInfo:
    """Reads the facts; raises ModelDirectoryError when a file or a field is missing or wrong."""
    path = directory / "config.json"
    config = read_json_object(path)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelDirectoryError(f"{path}: architectures must name the model's class")
    generation = directory / "generation_config.json"
    eos = read_json_object(generation).get("eos_token_id") if generation.is_file() else None
    if eos is None:
        eos = config.get("eos_token_id")
    return ModelInfo(
        name=directory.resolve().name,
        architecture=str(architectures[0]),
        context_tokens_max=_positive(path, config, "max_position_embeddings"),
        vocab_size=_positive(path, config, "vocab_size"),
        eos_ids=_token_ids(path, eos),
    )


def _positive(path: Path, config: dict[str, object], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelDirectoryError(f"{path}: {key} must be a positive integer, is {value!r}")
    return value


def _token_ids(path: Path, value: object) -> tuple[int, ...]:
    """None, one id, or a list of them; ascending."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    ids = [token_id for token_id in listed if type(token_id) is int and token_id >= 0]
    if len(ids) != len(listed):
        raise ModelDirectoryError(f"{path}: eos_token_id must be a token id or a list of them")
    return tuple(sorted(set(ids)))


def read_json_object(path: Path) -> dict[str, object]:
    """The object in a JSON file of a model directory; raises ModelDirectoryError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelDirectoryError(
            f"{path} is missing: {path.parent} must be a complete Hugging Face model directory"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} is not a JSON object")
    return value
