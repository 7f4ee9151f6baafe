"""The callee's side of a pair: the body of a `Connect` call."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from crossdock.api.v1 import kv_pb2
from crossdock.engine.client import Engine
from crossdock.engine.translation import endpoint_of, remote_of, terms_of
from crossdock.errors import unreachable


async def serve_pair(
    engine: Engine, instance_id: str, request: kv_pb2.ConnectRequest
) -> AsyncGenerator[kv_pb2.ConnectResponse, None]:
    """Makes the pair in our engine, answers, and holds the stream for the pair's life.

    An old pair with the same instance is closed first: that the new one is answered tells the
    caller that nothing of the old one is in flight here.
    """
    remote, terms = remote_of(request.endpoint), terms_of(request)
    replaced = unreachable(f"{remote.instance_id} connected again")
    await engine.peers.wait_gone(remote.instance_id, replaced)
    pair = engine.peers.connect(remote, terms)
    try:
        yield kv_pb2.ConnectResponse(endpoint=endpoint_of(engine, instance_id))
        await pair.wait_broken()
        raise pair.failure()
    finally:
        engine.peers.disconnect(pair, unreachable(f"{remote.instance_id} ended the pair"))
