"""Clusters of a test, always ended and judged."""

from ..support.clusters import make_cluster

__all__ = ["make_cluster"]
