"""Simulator of a cluster with jobs that share in-network aggregation, all-reduce by all-reduce."""
