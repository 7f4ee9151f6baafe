"""Settings of a prefill instance."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from crossdock.engine.settings import EngineSettings
from crossdock.rpc.channel import is_address


class PrefillSettings(EngineSettings):
    """What every service with an engine takes, and the outer tiers."""

    kvstore: Annotated[
        str, Field(max_length=256, description="host:port of a kvstore; empty: none is used.")
    ] = ""

    @field_validator("kvstore")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError(f"{value!r} is not host:port")
        return value
