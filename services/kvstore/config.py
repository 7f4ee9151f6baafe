"""Settings of a kvstore."""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, Field

from crossdock.fabric.settings import TransferSettings


class KvStoreSettings(TransferSettings):
    """The size of its memory and how peers reach it."""

    memory: Annotated[ByteSize, Field(gt=0, description="Bytes of the slab, such as 1GiB.")] = (
        ByteSize(512 << 20)
    )
