"""Requests that protobuf cannot parse become INVALID_ARGUMENT with the field's name.

gRPC would answer INTERNAL, as if the fault were ours. The interceptor raises what is found here.
The usual cause is a string that is not UTF-8: protobuf rejects the whole message and does not say
which field it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from crossdock.errors import CrossdockError, invalid_argument

_LENGTH_DELIMITED = 2


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands in for a request that could not be parsed."""

    error: CrossdockError


class TolerantRegistration:
    """Takes the place of a server when generated code registers a service on it.

    The handlers reach the server with deserializers that answer Malformed instead of raising.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Called by generated code; the same handlers come by name, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by generated code."""
        methods = descriptor_pool.Default().FindServiceByName(service).methods_by_name
        tolerant = {
            name: _with_deserializer(
                handler, _tolerant(handler.request_deserializer, methods[name].input_type)
            )
            for name, handler in handlers.items()
        }
        generic = grpc.method_handlers_generic_handler(service, tolerant)
        self._server.add_generic_rpc_handlers((generic,))


def _with_deserializer(handler: Any, deserializer: Callable[[bytes], Any]) -> Any:
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(
            handler.unary_stream, deserializer, handler.response_serializer
        )
    assert handler.unary_unary is not None
    return grpc.unary_unary_rpc_method_handler(
        handler.unary_unary, deserializer, handler.response_serializer
    )


def _tolerant(parse: Callable[[bytes], Any], descriptor: Descriptor) -> Callable[[bytes], Any]:
    def deserialize(raw: bytes) -> Any:
        try:
            return parse(raw)
        except DecodeError:
            return Malformed(explain(raw, descriptor))

    return deserialize


def explain(raw: bytes, descriptor: Descriptor) -> CrossdockError:
    """Why the message cannot be parsed, as precisely as it can be told."""
    try:
        name = find_invalid_utf8(raw, descriptor)
    except DecodeError:
        name = None
    if name is None:
        return invalid_argument("request", f"not a valid {descriptor.name} message")
    return invalid_argument(name, "not valid UTF-8")


def find_invalid_utf8(raw: bytes, descriptor: Descriptor) -> str | None:
    """The path of the first string that is not UTF-8. DecodeError when the bytes are no message."""
    # A message without fields takes everything as unknown, and checks no string.
    unknown = UnknownFieldSet(Empty.FromString(raw))
    counts: dict[int, int] = {}
    for position in range(len(unknown)):
        field = unknown[position]
        known = descriptor.fields_by_number.get(field.field_number)
        if known is None or field.wire_type != _LENGTH_DELIMITED:
            continue
        index = counts.get(field.field_number, 0)
        counts[field.field_number] = index + 1
        name = f"{known.name}[{index}]" if known.is_repeated else known.name
        if known.type == FieldDescriptor.TYPE_STRING:
            try:
                field.data.decode("utf-8")
            except UnicodeDecodeError:
                return name
        elif known.message_type is not None:
            inner = find_invalid_utf8(field.data, known.message_type)
            if inner is not None:
                return f"{name}.{inner}"
    return None
