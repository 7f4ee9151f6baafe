"""The one server interceptor: calls pass the gate, requests are parsed, errors become statuses.

Only CrossdockError carries its message outside. Anything else is a bug: it is logged with its
traceback and leaves as INTERNAL without a detail of the inside.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any

import grpc
import structlog

from crossdock.errors import CrossdockError, internal
from crossdock.rpc.gate import CallGate
from crossdock.rpc.malformed import parse
from crossdock.rpc.status import abort

_log = structlog.get_logger("crossdock.rpc")


class ServiceInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps unary-unary and unary-stream handlers; others pass as they are.

    `ungated` names methods ("/package.Service/Method") that a drain neither refuses nor waits for.
    """

    def __init__(self, gate: CallGate, ungated: frozenset[str]) -> None:
        self._gate = gate
        self._ungated = ungated

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler  # UNIMPLEMENTED, answered by gRPC
        method = handler_call_details.method
        make: Any
        if handler.unary_unary is not None:
            make, call = grpc.unary_unary_rpc_method_handler, self._unary(handler, method)
        elif handler.unary_stream is not None:
            make, call = grpc.unary_stream_rpc_method_handler, self._stream(handler, method)
        else:
            return handler
        return make(call, _as_it_came, handler.response_serializer)

    def _admit(self, method: str) -> AbstractContextManager[None]:
        ungated = method in self._ungated or method.startswith("/grpc.")
        return nullcontext() if ungated else self._gate.admit()

    def _unary(self, handler: Any, method: str) -> Any:
        async def call(raw: bytes, context: Any) -> Any:
            try:
                with self._admit(method):
                    request = parse(raw, handler.request_deserializer, method)
                    return await handler.unary_unary(request, context)
            except Exception as error:  # noqa: BLE001 - the boundary: logged and translated
                await _fail(error, method, context)

        return call

    def _stream(self, handler: Any, method: str) -> Any:
        # A coroutine with aclosing, not a generator: when the caller goes away while a message is
        # being written, the servicer's generator is closed at once and not at garbage collection.
        async def call(raw: bytes, context: Any) -> None:
            try:
                with self._admit(method):
                    request = parse(raw, handler.request_deserializer, method)
                    responses = handler.unary_stream(request, context)
                    if not inspect.isasyncgen(responses):
                        await responses  # it writes to the context itself
                        return
                    async with aclosing(responses):
                        async for response in responses:
                            await context.write(response)
            except Exception as error:  # noqa: BLE001 - the boundary: logged and translated
                await _fail(error, method, context)

        return call


def _as_it_came(raw: bytes) -> bytes:
    return raw


async def _fail(error: Exception, method: str, context: Any) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, CrossdockError):
        await abort(context, error)
    if context.cancelled() or isinstance(error, asyncio.InvalidStateError):
        # The caller went away while a message was being written: nobody is left to be told.
        raise asyncio.CancelledError
    _log.error("call_failed", method=method, exc_info=error)
    await abort(context, internal("internal error; see the log of the service"))
