"""Settings that every service has, read from CROSSDOCK_* variables and from flags."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from crossdock.telemetry.logs import LogLevel


class ServiceSettings(BaseSettings):
    """Flags win over variables. Only a service's `__main__` makes one."""

    model_config = SettingsConfigDict(
        env_prefix="CROSSDOCK_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        extra="ignore",
    )

    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535, description="gRPC port; 0 takes a free one.")] = 0
    metrics_port: Annotated[
        int, Field(ge=0, le=65_535, description="HTTP port of /metrics; 0 takes a free one.")
    ] = 0
    instance_id: Annotated[
        str, Field(max_length=128, description="Name of this instance; made up when empty.")
    ] = ""
    log_level: LogLevel = "info"
    parent_pid: Annotated[
        int,
        Field(ge=0, description="The process that starts this one, which ends with it; 0: not."),
    ] = 0
    drain_timeout: Annotated[
        float, Field(ge=0, description="Seconds that running calls have after SIGTERM.")
    ] = 30.0

    @classmethod
    def from_flags(cls, program: str, arguments: Sequence[str]) -> Self:
        """Settings from flags, and from variables where no flag is given."""
        sources: dict[str, Any] = {"_cli_parse_args": list(arguments), "_cli_prog_name": program}
        return cls(**sources)

    def instance_name(self, role: str) -> str:
        """The name given, or one that is unique among the processes of the fleet."""
        return self.instance_id or f"{role}-{socket.gethostname()}-{os.getpid()}"
