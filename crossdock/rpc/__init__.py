"""gRPC plumbing that every service shares: servers, channels, statuses, draining."""
