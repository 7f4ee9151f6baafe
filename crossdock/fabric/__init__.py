"""The RDMA fabric under the transfers: devices, their ports and what peers reach them by."""
