"""The `crossdock` command: a local fleet, its status, and requests to it."""
