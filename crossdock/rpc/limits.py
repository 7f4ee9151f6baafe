"""Bounds of the gRPC plumbing, in one place."""

from __future__ import annotations

from typing import Final

# Above every size check of our own, so that a message that is too large is refused by name with
# INVALID_ARGUMENT and RESOURCE_EXHAUSTED always means overload.
MESSAGE_BYTES_MAX: Final = 16 << 20

# Calls that have arrived and that nobody has looked at yet. Beyond its own bounds, 1,000 of them or
# 30 s, gRPC ends some with CANCELLED; ours, on live requests, says what it is and when to come
# back, and where a server is busy for so long, the deadline of a call ends it.
PENDING_CALLS_MAX: Final = 65_536
PENDING_MAX_S: Final = 3_600

# A dead connection is noticed within the sum of the two. Pings go out only while calls are live,
# so an idle fleet sends none.
KEEPALIVE_TIME_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000
# A ping that gRPC sent for its own ends, as it does with every burst of data, keeps those of the
# keepalive back until it is answered: its bound, a minute by default, is the one that holds then.
PING_TIMEOUT_MS: Final = KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS

# A worker that restarts is back within a second or two; the default backoff grows to two minutes.
RECONNECT_BACKOFF_MIN_MS: Final = 50
RECONNECT_BACKOFF_MAX_MS: Final = 1_000

# A client takes 8 KiB of trailing metadata by default, and refuses the whole status beyond. The
# message is there three times: percent-encoded, where a byte may take three, and twice in the
# details, whose base64 takes four thirds.
STATUS_MESSAGE_BYTES_MAX: Final = 1_024
