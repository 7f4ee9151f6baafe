"""Settings of a service whose memory peers read and write."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from crossdock.fabric.choice import RdmaChoice, Transport, choose_rdma
from crossdock.rpc.settings import ServiceSettings


class TransferSettings(ServiceSettings):
    """What KV blocks travel over, and where they lie."""

    transport: Transport = "auto"
    bind_interface: Annotated[
        str, Field(description="Network device for tcp and rc; empty: chosen by UCX.")
    ] = ""
    rdma_device: Annotated[
        str, Field(description="Port for rc, such as mlx5_0:1; empty: the first usable.")
    ] = ""
    gid_index: Annotated[
        int | None, Field(ge=0, description="Of its GID; unset: what `crossdock doctor` shows.")
    ] = None
    huge_pages: bool = False

    def choose_rdma(self) -> RdmaChoice:
        """Raises where RDMA is asked for and cannot be had."""
        return choose_rdma(self.transport, self.rdma_device, self.gid_index)
