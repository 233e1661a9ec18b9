"""Devices for federated jobs, lent by a collaboration controller to jobs that share them: for Flower, and for
others."""
