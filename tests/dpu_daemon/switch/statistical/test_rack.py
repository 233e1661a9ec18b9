"""The rack in virtual time: what processes may send, and what jobs get of links and aggregators (NetPack §4, §6.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offpath.bindings.ina.packets import Flag, Packet, PacketKind, Refusal
from offpath.dpu_daemon.switch.statistical.links import Link
from offpath.dpu_daemon.switch.statistical.rack import Rack
from offpath.host_helper.ina.statistical.endpoint import attach_of
from offpath.host_helper.ina.statistical.sender import Window

from .virtual import MS, SETTINGS, Job, attached, rates, run


# -- links and windows ------------------------------------------------------------------------------------------------
def test_a_link_serves_in_turn_at_its_rate_marks_above_its_threshold_and_drops_above_its_limit() -> None:
    link = Link(8e6, mark_bytes=2_000, drop_bytes=4_000, delay_ns=5 * MS)  # 1 byte a µs
    assert [link.offer(1_500, 0) for _ in range(5)] == [
        (1_500_000 + 5 * MS, False), (3_000_000 + 5 * MS, False), (4_500_000 + 5 * MS, True),
        None, None,
    ]  # fmt: skip
    assert link.offer(1_500, 100 * MS) == (100 * MS + 1_500_000 + 5 * MS, False)


def test_an_aggregated_job_gets_the_whole_link_and_an_unaggregated_one_its_part() -> None:
    """Table 1: one flow to the PS with memory, as many as workers without."""
    window = Window(2, 8, 96)
    whole = Rack(replace(SETTINGS, aggregators=4096))
    none = Rack(SETTINGS)
    (fast,) = rates(whole, [Job(whole, 1, "abc", "d", window)])
    (slow,) = rates(none, [Job(none, 1, "abc", "d", window)])
    assert 0.85 * 10e6 < fast <= 10e6
    assert 0.85 * 10e6 / 3 < slow <= 10e6 / 3 * 1.01


def test_two_jobs_on_one_link_share_it() -> None:
    rack = Rack(replace(SETTINGS, aggregators=4096))
    found = rates(rack, [Job(rack, 1, "ab", "d", Window(2, 8, 96)), Job(rack, 2, "bc", "d", Window(2, 8, 96))], 6, 10)
    assert 0.85 * 10e6 < sum(found) <= 10e6 * 1.01
    assert max(found) < 1.4 * min(found)


@pytest.mark.parametrize("pat_ratio", [0.25, 0.5, 0.75, 1.0])
def test_the_aggregated_part_is_the_pat_ratio(pat_ratio: float) -> None:
    """Figure 14: y = x for one job of fixed throughput; the links are wide."""
    rack = Rack(replace(SETTINGS, aggregators=round(32 * pat_ratio), link_bps=1e9))
    job = Job(rack, 1, "ab", "c", Window(32, 32, 32))
    run(rack, [job], 0, 4_000 * MS)
    before = replace(rack.aggregators.counters[1])
    run(rack, [job], 4_000 * MS, 8_000 * MS)
    after = rack.aggregators.counters[1]
    found = (after.aggregated - before.aggregated) / (after.data - before.data)
    assert abs(found - pat_ratio) < 0.08


# -- processes --------------------------------------------------------------------------------------------------------
def test_a_job_is_ready_once_when_its_last_process_has_attached() -> None:
    rack = Rack(SETTINGS)
    ports = []
    for rank in (None, 0, 1):
        assert ports == [] or rack.newly_ready(1) == []
        ports.append(attached(rack, attach_of(1, 2, "a", rank)))
    assert rack.newly_ready(1) == ports
    assert rack.newly_ready(1) == []


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (attach_of(2, 2, "z", 0), Refusal.SERVER),
        (attach_of(1, 2, "b", 0), Refusal.TAKEN),
        (attach_of(1, 2, "b", None), Refusal.TAKEN),
        (attach_of(1, 3, "b", 1), Refusal.MISMATCH),
    ],
)
def test_an_attach_that_does_not_fit_is_refused_and_changes_nothing(packet: Packet, why: Refusal) -> None:
    rack = Rack(SETTINGS)
    attached(rack, attach_of(1, 2, "a", None))
    attached(rack, attach_of(1, 2, "a", 0))
    assert rack.attach(packet) is why
    attached(rack, attach_of(1, 2, "b", 1))
    assert len(rack.newly_ready(1)) == 3


def test_a_process_sends_for_its_own_job_and_rank_only() -> None:
    rack = Rack(replace(SETTINGS, aggregators=8))
    worker, ps = attached(rack, attach_of(1, 2, "a", 0)), attached(rack, attach_of(1, 2, "b", None))
    attached(rack, attach_of(1, 2, "c", 1))
    attached(rack, attach_of(2, 2, "c", 0))
    mine = Packet(PacketKind.DATA, 1, 0, 2, 1, 0, 0, bytes(4))
    foreign = [
        replace(mine, job=2), replace(mine, bitmap=2), replace(mine, bitmap=3), replace(mine, workers=3),
        replace(mine, kind=PacketKind.RESULT), Packet(PacketKind.FLUSH, 1, 0, 2), Packet(PacketKind.READY, 1, 0, 2),
    ]  # fmt: skip
    for packet in foreign:
        rack.handle(worker, packet, 0)
    rack.handle(ps, mine, 0)
    rack.advance(1_000 * MS)
    assert rack.dropped == len(foreign) + 1
    assert rack.aggregators.taken == {}
    rack.handle(worker, mine, 1_000 * MS)
    rack.advance(2_000 * MS)
    assert len(rack.aggregators.taken) == 1


def test_the_ps_learns_that_a_worker_left_and_the_last_process_takes_all_of_the_job_along() -> None:
    rack = Rack(replace(SETTINGS, aggregators=8))
    ps, first, second = (attached(rack, attach_of(1, 2, "a", rank)) for rank in (None, 0, 1))
    rack.handle(first, Packet(PacketKind.DATA, 1, 0, 2, 1, 0, 0, bytes(4)), 0)
    rack.advance(1_000 * MS)
    assert rack.detach(first) == (ps, Packet(PacketKind.DETACHED, 1, 0, 2, 1))
    assert rack.detach(ps) is None
    assert len(rack.aggregators.taken) == 1
    assert rack.detach(second) is None
    assert rack.aggregators.taken == {}
    assert rack.statistics()["jobs"]["0000000000000001"]["data"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"servers": ()}, {"servers": ("a", "a")}, {"servers": ("a", "")}, {"link_bps": 0.0}, {"link_bps": float("nan")},
        {"link_bps": float("inf")}, {"rtt_ns": -1}, {"mark_bytes": float("nan")}, {"drop_bytes": -1.0},
        {"aggregators": -1}, {"aggregators": 1 << 21}, {"stale_ns": 0},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"want|out of range"):
        Rack(replace(SETTINGS, **wrong))


def test_a_full_network_drops_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpath.dpu_daemon.switch.statistical.rack.MOST_QUEUED", 3)
    rack = Rack(SETTINGS)
    worker = attached(rack, attach_of(1, 1, "a", 0))
    attached(rack, attach_of(1, 1, "b", None))
    for psn in range(5):
        rack.handle(worker, Packet(PacketKind.DATA, 1, psn, 1, 1, 0, 0, bytes(4)), 0)
    assert rack.dropped == 2
    assert [packet.flags & Flag.COLLIDED for _, packet in rack.advance(1_000 * MS)] == [0, 0, 0]
