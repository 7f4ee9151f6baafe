"""Requests that protobuf cannot parse become INVALID_ARGUMENT with the field's name.

gRPC would answer INTERNAL, as if the fault were ours, so the interceptor parses in its place. The
usual cause is a string that is not UTF-8: protobuf rejects the whole message and does not say
which field it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from crossdock.errors import CrossdockError, invalid_argument

_LENGTH_DELIMITED = 2


def parse(raw: bytes, deserialize: Callable[[bytes], Any], method: str) -> Any:
    """The request of a call of `method` ("/package.Service/Method"). Raises INVALID_ARGUMENT."""
    try:
        return deserialize(raw)
    except DecodeError:
        service, _, name = method.removeprefix("/").partition("/")
        methods = descriptor_pool.Default().FindServiceByName(service).methods_by_name
        raise explain(raw, methods[name].input_type) from None


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
