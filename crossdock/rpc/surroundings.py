"""What a service reaches beyond its own process, apart from its engine.

Everything that is random in a service, and every call in or out of it, comes through here; time is
the event loop's. So a simulation that puts its own things here decides all that may happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Final

import grpc

from crossdock.rpc.channel import open_channel


@dataclass(frozen=True)
class Surroundings:
    """`make_server` takes what `grpc.aio.server` takes. Keys and ids are drawn from `random`."""

    open_channel: Callable[[str], grpc.aio.Channel]
    make_server: Callable[..., grpc.aio.Server]
    random: Random


REAL: Final = Surroundings(open_channel, grpc.aio.server, SystemRandom())
