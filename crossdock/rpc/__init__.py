"""gRPC plumbing that every service shares: servers, channels, statuses, draining."""

from __future__ import annotations

import os

# What gRPC fails with it also raises, and whoever catches it says so once: gRPC's own lines among
# the JSON of a log are noise. It reads the variable when it is loaded, which is after this.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
