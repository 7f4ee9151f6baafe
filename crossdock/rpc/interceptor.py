"""The one server interceptor: domain errors become statuses, and calls pass the gate.

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
from crossdock.rpc.malformed import Malformed
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
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return handler

    def _admit(self, method: str) -> AbstractContextManager[None]:
        ungated = method in self._ungated or method.startswith("/grpc.")
        return nullcontext() if ungated else self._gate.admit()

    def _unary(self, inner: Any, method: str) -> Any:
        async def call(request: Any, context: Any) -> Any:
            try:
                with self._admit(method):
                    _check_parsed(request)
                    return await inner(request, context)
            except Exception as error:  # noqa: BLE001 - the boundary: logged and translated
                await _fail(error, method, context)

        return call

    def _stream(self, inner: Any, method: str) -> Any:
        # A coroutine with aclosing, not a generator: when the caller goes away while a message is
        # being written, the servicer's generator is closed at once and not at garbage collection.
        async def call(request: Any, context: Any) -> None:
            try:
                with self._admit(method):
                    _check_parsed(request)
                    if not inspect.isasyncgenfunction(inner):
                        await inner(request, context)
                        return
                    async with aclosing(inner(request, context)) as responses:
                        async for response in responses:
                            await context.write(response)
            except Exception as error:  # noqa: BLE001 - the boundary: logged and translated
                await _fail(error, method, context)

        return call


def _check_parsed(request: Any) -> None:
    if isinstance(request, Malformed):
        raise request.error


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
