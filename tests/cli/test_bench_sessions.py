"""`offpath bench sessions`: its keys on made-up blocks, its plan, and one block of a real daemon."""

from __future__ import annotations

from offpath.cli.bench.crowd import MOST_IN_FLIGHT, Crowd, CrowdBlock
from offpath.cli.bench.measure import Cores
from offpath.cli.bench.sessions import ROWS, TENANTS, Row, keys


def block(wall_ns: int, latencies_us: dict[str, int]) -> CrowdBlock:
    return CrowdBlock({name: [us * 1000] * 10 for name, us in latencies_us.items()}, wall_ns, {})


def test_throughput_is_of_neighbouring_blocks_and_p99_of_all_blocks() -> None:
    even, uneven = dict.fromkeys(TENANTS, 100), dict(zip(TENANTS, (100, 110, 120, 130), strict=True))
    found = keys({Row(4, 4): [block(100, even)] * 2, Row(4, 256): [block(125, uneven), block(200, uneven)]})
    assert found["throughput_256_over_4"] == {"median": 0.65, "min": 0.5, "max": 0.8, "blocks": 2}
    assert found["p99_between_tenants"] == 1.3


def test_the_rows_have_1_to_256_sessions_of_one_tenant_and_of_four() -> None:
    assert [(row.tenants, row.sessions, row.in_flight) for row in ROWS] == [
        (1, 1, 16), (1, 16, 4), (1, 64, 1), (1, 256, 1), (4, 4, 16), (4, 16, 4), (4, 64, 1), (4, 256, 1),
    ]  # fmt: skip
    assert all(sum(row.spread().values()) == row.sessions for row in ROWS)
    assert max(row.in_flight for row in ROWS) <= MOST_IN_FLIGHT


def test_every_request_of_every_session_is_answered() -> None:
    crowd = Crowd(Cores(None, None), {"a": 3, "b": 2})
    try:
        found = crowd.block({"a": 3, "b": 2}, 2, 100)
        small = crowd.block({"b": 1}, 4, 4)
    finally:
        crowd.close()
    assert sum(map(len, found.latencies_ns.values())) == 100
    assert all(found.latencies_ns.values())
    assert set(found.cpu_ns) == {"daemon", "worker", "requester"}
    assert {name: len(each) for name, each in small.latencies_ns.items()} == {"b": 4}
