"""The RDMA fabric of this host: devices, the GIDs to use, and what the NICs count."""
