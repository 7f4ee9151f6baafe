"""The kvstore: the outer tiers of the KV cache, by content hash, on leases."""
