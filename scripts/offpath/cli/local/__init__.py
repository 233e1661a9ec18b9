"""Processes of a cluster on this machine: for demonstrations, benchmarks and tests."""
