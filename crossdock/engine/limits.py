"""Bounds on what a request to a prefill or decode instance may carry, and on waiting."""

from __future__ import annotations

from typing import Final

HANDOFF_ID_BYTES: Final = 16
REQUEST_ID_BYTES_MAX: Final = 128
INSTANCE_ID_BYTES_MAX: Final = 128
ADDRESS_BYTES_MAX: Final = 256
TENANT_SALT_BYTES_MAX: Final = 64
STOP_TOKEN_IDS_MAX: Final = 128
TEMPERATURE_MAX: Final = 2.0

# Tokens of one block, the unit of the KV memory.
BLOCK_TOKENS: Final = 32

# A descriptor is a UCX worker address and a remote key: a few KiB with many rails.
DESCRIPTOR_BYTES_MAX: Final = 64 << 10
LAYOUT_BYTES_MAX: Final = 4 << 10

# Waiting, in seconds. A pair on one host is made in milliseconds; over TCP between hosts UCX
# takes up to a few seconds to wire up.
PAIR_READY_MAX_S: Final = 10.0
PAIR_CLOSED_MAX_S: Final = 10.0
# An engine reports between steps; one step is bounded to a quarter of a second by its scheduler.
STATUS_MAX_S: Final = 1.5
