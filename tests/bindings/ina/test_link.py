"""The emulated link keeps its rate in both directions, with any number of users, and counts what passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.bindings.ina.frames import CHUNK_BYTES
from offpath.bindings.ina.rate_limiter import Direction, RateLimiter, plain_bytes, write_rate


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


RATE = 10 * CHUNK_BYTES


def move(link: RateLimiter, clock: Clock, chunks: int) -> float:
    """Send so many chunks, waiting as the link says; how long it took."""
    began = clock.now
    for _ in range(chunks):
        clock.now += link.wait_s(Direction.OUT)
        link.take(Direction.OUT, CHUNK_BYTES)
    clock.now += link.wait_s(Direction.OUT)
    return clock.now - began


def test_a_transfer_takes_as_long_as_its_bytes() -> None:
    clock = Clock()
    link = RateLimiter(RATE, clock=clock)
    link.begin()
    assert move(link, clock, 20) == pytest.approx(2.0)


def test_an_idle_link_saves_nothing_up_for_the_next_transfer() -> None:
    clock = Clock()
    link = RateLimiter(1000 * CHUNK_BYTES, clock=clock)  # ten chunks fit the bucket
    clock.now += 60
    link.begin()
    assert move(link, clock, 100) == pytest.approx(0.1)


def test_who_is_late_within_a_transfer_catches_up_and_not_beyond_the_bucket() -> None:
    clock = Clock()
    link = RateLimiter(1000 * CHUNK_BYTES, clock=clock)
    link.begin()
    move(link, clock, 11)
    clock.now += 0.005  # five chunks' worth
    assert move(link, clock, 10) == pytest.approx(0.005)
    clock.now += 60
    assert move(link, clock, 20) == pytest.approx(0.010)


def test_the_directions_do_not_share_a_rate() -> None:
    clock = Clock()
    link = RateLimiter(RATE, clock=clock)
    link.begin()
    link.take(Direction.OUT, 5 * CHUNK_BYTES)
    assert link.wait_s(Direction.IN) == 0
    assert link.wait_s(Direction.OUT) == pytest.approx(0.5)


def test_plain_traffic_of_a_ring_waits_its_time_and_counts_in_both_directions() -> None:
    clock = Clock()
    link = RateLimiter(RATE, clock=clock)
    nbytes = plain_bytes(20 * CHUNK_BYTES, ranks=4)
    assert nbytes == 30 * CHUNK_BYTES
    link.owe(nbytes)
    assert link.owed_s() == pytest.approx(3.0)
    assert link.sent == link.received == {"plain": nbytes, "ina": 0}


def test_the_time_that_plain_traffic_really_took_is_paid() -> None:
    clock = Clock()
    link = RateLimiter(RATE, clock=clock)
    began = clock.now
    clock.now += 1.0
    link.owe(30 * CHUNK_BYTES, began)
    assert link.owed_s() == pytest.approx(2.0)
    began = clock.now
    clock.now += 60.0
    link.owe(CHUNK_BYTES, began)
    assert link.owed_s() == 0


def test_what_is_stopped_takes_only_the_time_until_then() -> None:
    clock = Clock()
    link = RateLimiter(RATE, clock=clock)
    link.begin()
    link.take(Direction.OUT, 4 * CHUNK_BYTES)
    clock.now += 0.1
    link.stop(Direction.OUT)
    assert link.wait_s(Direction.OUT) == 0
    assert link.sent["ina"] == pytest.approx(CHUNK_BYTES, abs=1)
    link.take(Direction.OUT, CHUNK_BYTES)
    assert link.wait_s(Direction.OUT) == pytest.approx(0.1)


def test_charging_waits() -> None:
    link = RateLimiter(1 << 20)
    link.charge((1 << 18) + CHUNK_BYTES)
    began = link._clock()
    link.charge(1 << 17)
    assert 0.06 < link._clock() - began < 0.5, "what the first wait was late by is this one's, up to a chunk"
    assert link.owed_s() == 0


def test_the_rate_changes_from_outside_while_something_is_owed(tmp_path: Path) -> None:
    clock, path = Clock(), str(tmp_path / "rate")
    link = RateLimiter(RATE, path, clock)
    link.owe(21 * CHUNK_BYTES)
    assert link.owed_s() == pytest.approx(2.1)
    write_rate(path, RATE // 10)
    assert link.rate == RATE // 10
    assert link.owed_s() == pytest.approx(21.0)
    write_rate(path, 0)
    assert link.owed_s() == 0
    link.close()
    link.close()
    assert link.rate == 0


def test_links_of_one_file_have_one_rate_which_the_first_one_set(tmp_path: Path) -> None:
    path = str(tmp_path / "rate")
    one, other = RateLimiter(RATE, path), RateLimiter(1, path)
    assert one.rate == other.rate == RATE
    with pytest.raises(ValueError, match="write_rate"):
        one.rate = 5


def test_a_file_without_a_rate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rate"
    path.write_bytes(b"")
    with pytest.raises(OSError, match="holds no rate"):
        RateLimiter(0, str(path))


def test_without_a_limit_nothing_waits() -> None:
    link = RateLimiter()
    link.charge(1 << 40)
    assert link.wait_s(Direction.OUT) == 0
    assert link.sent["plain"] == 1 << 40
