"""CrossdockError to gRPC status with rich details, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, cast

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from crossdock.errors import ERROR_DOMAIN, Code, CrossdockError, Reason
from crossdock.rpc.limits import STATUS_MESSAGE_BYTES_MAX

DETAILS_KEY = "grpc-status-details-bin"

_GRPC_CODE: dict[Code, grpc.StatusCode] = {
    code: next(status for status in grpc.StatusCode if status.value[0] == code.value)
    for code in Code
}

# The reason of a status that carries none, because gRPC itself made it.
_DEFAULT_REASON: dict[Code, Reason] = {
    Code.CANCELLED: Reason.CANCELLED,
    Code.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    Code.INVALID_ARGUMENT: Reason.INVALID_FIELD,
    Code.ALREADY_EXISTS: Reason.ALREADY_LIVE,
    Code.NOT_FOUND: Reason.NOT_FOUND,
    Code.RESOURCE_EXHAUSTED: Reason.OVERLOADED,
    Code.UNAVAILABLE: Reason.UNREACHABLE,
    Code.UNIMPLEMENTED: Reason.UNSUPPORTED,
}


def grpc_code(code: Code) -> grpc.StatusCode:
    return _GRPC_CODE[code]


def _shorten(text: str) -> str:
    raw = text.encode("utf-8", errors="replace")
    if len(raw) <= STATUS_MESSAGE_BYTES_MAX:
        return raw.decode("utf-8")
    return raw[: STATUS_MESSAGE_BYTES_MAX - 3].decode("utf-8", errors="ignore") + "..."


def to_rich_status(error: CrossdockError) -> status_pb2.Status:
    """The status with ErrorInfo, and BadRequest or RetryInfo where they apply."""
    status = status_pb2.Status(code=error.code.value, message=_shorten(error.message))
    _pack(status, error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN))
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_shorten(error.message)
        )
        _pack(status, error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _pack(
    status: status_pb2.Status,
    detail: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.RetryInfo,
) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


async def abort(
    context: grpc.aio.ServicerContext,  # type: ignore[type-arg]
    error: CrossdockError,
) -> NoReturn:
    """Ends the call with the error. Never returns: raises grpc's AbortError."""
    status = to_rich_status(error)
    await context.abort(
        grpc_code(error.code), status.message, ((DETAILS_KEY, status.SerializeToString()),)
    )
    raise AssertionError("context.abort returned")


def from_rpc_error(error: grpc.RpcError) -> CrossdockError:
    """What a call failed with. Details that do not parse are left out, never an error."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return CrossdockError(Code.UNKNOWN, str(error), Reason.INTERNAL)
    code = Code(error.code().value[0])
    result = CrossdockError(
        code, error.details() or code.name, _DEFAULT_REASON.get(code, Reason.INTERNAL)
    )
    metadata: Iterable[tuple[str, str | bytes]] = cast(Any, error.trailing_metadata()) or ()
    for key, value in metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            _read_details(value, result)
    return result


def _read_details(raw: bytes, error: CrossdockError) -> None:
    try:
        status = status_pb2.Status.FromString(raw)
    except DecodeError:
        return
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
            error.reason = info.reason
        elif detail.Is(bad_request.DESCRIPTOR) and detail.Unpack(bad_request):
            if bad_request.field_violations:
                error.field = bad_request.field_violations[0].field
        elif detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
            error.retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
