"""Settings of a decode instance."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from crossdock.engine.settings import EngineSettings


class DecodeSettings(EngineSettings):
    """What every service with an engine takes, and what concerns the receiver of blocks."""

    quarantine_patience: Annotated[
        float,
        Field(
            gt=0,
            description="Seconds that more than a quarter of the blocks may be in quarantine, "
            "before the instance drains and goes on with another slab. The engine closes a pair "
            "whose prefill says nothing within 10; only over shared memory that is not enough.",
        ),
    ] = 20.0
