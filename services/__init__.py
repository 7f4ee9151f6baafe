"""The deployables of crossdock: one package a service, none importing another."""
