"""`offpath bench daemon` on a real daemon: the figures that do not depend on time keep their budget."""

from __future__ import annotations

import pytest

from ..support.command import offpath


@pytest.mark.slow
def test_a_daemon_at_rest_and_after_a_thousand_requests_stays_below_its_memory() -> None:
    done = offpath("bench", "daemon", "--quick", "--json", "--only", "memory")
    assert done.code == 0, done.err
    found = done.document
    assert 20 < found["rest_mib"] < 60
    assert 20 < found["rest_after_1000_mib"] < 60
