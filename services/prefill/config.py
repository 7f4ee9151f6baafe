"""Settings of a prefill instance."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from crossdock.engine.settings import EngineSettings


class PrefillSettings(EngineSettings):
    """What every service with an engine takes, and the outer tiers."""

    kvstore: Annotated[
        str, Field(max_length=256, description="host:port of a kvstore; empty: none is used.")
    ] = ""
