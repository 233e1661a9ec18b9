"""What the daemon's tests share: clusters that are always ended and judged, and a siege with a witness."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.clusters import make_cluster
from ..support.siege import Siege

__all__ = ["make_cluster"]


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
