"""Settings of the router."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from crossdock.rpc.channel import is_address
from crossdock.rpc.settings import ServiceSettings


class RouterSettings(ServiceSettings):
    """Times are in seconds."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="Hugging Face directory, or name of a fetched model; for its tokenizer.",
        ),
    ]
    prefill: Annotated[
        list[str],
        NoDecode,
        Field(
            description="host:port of a prefill instance; repeat for more. Without any, decode "
            "instances compute the prompts themselves."
        ),
    ] = []  # noqa: RUF012 -- pydantic copies defaults
    decode: Annotated[
        list[str],
        NoDecode,
        Field(min_length=1, description="host:port of a decode instance; repeat for more."),
    ]
    http_port: Annotated[
        int, Field(ge=0, le=65_535, description="HTTP port; 0 takes a free one.")
    ] = 0
    max_requests: Annotated[int, Field(ge=1, description="Live requests at most.")] = 4_096
    max_migrations: Annotated[
        int, Field(ge=0, description="New attempts after losses, for one request.")
    ] = 3
    instance_wait: Annotated[
        float,
        Field(ge=0, description="Seconds that a request waits after it lost its only instance."),
    ] = 10.0

    @field_validator("prefill", "decode", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """A variable holds a list separated by commas; so may a flag."""
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            return items
        return [part.strip() for item in items for part in str(item).split(",") if part.strip()]

    @field_validator("prefill", "decode")
    @classmethod
    def _check_addresses(cls, value: list[str]) -> list[str]:
        for address in value:
            if not is_address(address):
                raise ValueError(f"{address!r} is not host:port")
        return value
