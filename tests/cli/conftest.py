"""Clusters of a test, always ended and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..support.cluster import Cluster


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """``make_cluster(tenants, **tables)``: closed, and judged, at the end of the test."""
    made: list[Cluster] = []

    def make(tenants: dict[str, dict[str, Any]], **tables: Any) -> Cluster:
        made.append(cluster := Cluster(tenants, **tables))
        return cluster

    try:
        yield make
        for cluster in reversed(made):
            cluster.close()
    finally:
        for cluster in made:
            cluster.kill()
