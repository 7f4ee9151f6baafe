"""Settings of a kvstore."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ByteSize, Field

from crossdock.rpc.settings import ServiceSettings


class KvStoreSettings(ServiceSettings):
    """The size of its memory and how peers reach it."""

    memory: Annotated[ByteSize, Field(gt=0, description="Bytes of the slab, such as 1GiB.")] = (
        ByteSize(512 << 20)
    )
    transport: Literal["auto", "shm", "tcp", "rc"] = "auto"
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
