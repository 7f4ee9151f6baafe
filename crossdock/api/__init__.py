"""Generated protobuf and gRPC code of `protos/`; regenerate with `make protos`."""
