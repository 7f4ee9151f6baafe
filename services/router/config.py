"""The router's configuration: flags, and the environment with the prefix CROSSDOCK_."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

AddressList = Annotated[list[str], NoDecode]


class RouterConfig(BaseSettings):
    """Flags of `python -m services.router`. Times in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="CROSSDOCK_",
        cli_prog_name="python -m services.router",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="forbid",
    )

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="gRPC port; 0 takes a free one")
    http_port: int = Field(0, ge=0, le=65535, description="HTTP port; 0 takes a free one")
    instance_id: str = Field(
        default_factory=lambda: f"router-{socket.gethostname()}",
        min_length=1,
        max_length=128,
        description="stable name of this process",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="what is logged to stderr"
    )
    model: str = Field(description="model directory or the name of a fetched model")
    prefill: AddressList = Field(
        default_factory=list,
        description="host:port of a prefill instance; repeat for more. "
        "None: decode instances compute prompts themselves",
    )
    decode: AddressList = Field(
        min_length=1, description="host:port of a decode instance; repeat for more"
    )
    max_requests: int = Field(4096, ge=1, description="live requests at most")
    max_migrations: int = Field(3, ge=0, description="new attempts after losses, a request")
    instance_wait: float = Field(
        10.0, ge=0, description="how long a request that lost its instance waits for another"
    )
    drain_timeout: float = Field(30.0, ge=0, description="how long SIGTERM waits for requests")

    @field_validator("prefill", "decode", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """An environment variable holds a list, separated by commas; so may a flag."""
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            return items
        return [part.strip() for item in items for part in str(item).split(",") if part.strip()]

    @field_validator("prefill", "decode")
    @classmethod
    def _check_addresses(cls, value: list[str]) -> list[str]:
        for address in value:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{address!r} is not host:port")
        return value
