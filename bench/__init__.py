"""Benchmarks: the native programs and the fleet's, in one table with the limit beside each."""
