"""Channels to other services."""

from __future__ import annotations

import grpc

from crossdock.rpc import limits


def is_address(text: str) -> bool:
    """Whether it is host:port. gRPC itself takes the port modulo 65,536."""
    host, _, port = text.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    return bool(host) and digits and 0 < int(port) < 65_536


def open_channel(address: str) -> grpc.aio.Channel:
    """An insecure channel to `host:port`. Connects lazily; close it when done.

    gRPC's own retries are off: which failure may be tried again is the caller's decision. Each
    channel has its own connection, so that closing one never touches another.
    """
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
            ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.keepalive_time_ms", limits.KEEPALIVE_TIME_MS),
            ("grpc.keepalive_timeout_ms", limits.KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", limits.PING_TIMEOUT_MS),
            ("grpc.keepalive_permit_without_calls", 0),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", limits.RECONNECT_BACKOFF_MIN_MS),
            ("grpc.max_reconnect_backoff_ms", limits.RECONNECT_BACKOFF_MAX_MS),
        ],
    )
