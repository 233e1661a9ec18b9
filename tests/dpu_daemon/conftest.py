"""What the daemon's tests share: clusters that are always ended and judged, and a siege with a witness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..support.cluster import Cluster
from ..support.siege import Siege


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


@pytest.fixture(scope="module")
def siege_of_the_module() -> Iterator[Siege]:
    made = Siege()
    try:
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture
def siege(siege_of_the_module: Siege) -> Iterator[Siege]:
    """A daemon with a witness at work; at the end of each test the witness must have noticed nothing."""
    siege_of_the_module.before()
    yield siege_of_the_module
    siege_of_the_module.after()
