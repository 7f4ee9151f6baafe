"""The router: the public API, policy and the life of a request across instances."""
