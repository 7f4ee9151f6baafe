"""Settings of a decode instance."""

from __future__ import annotations

from crossdock.engine.settings import EngineSettings


class DecodeSettings(EngineSettings):
    """Nothing beyond what every service with an engine takes."""
